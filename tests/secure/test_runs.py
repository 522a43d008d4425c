"""Whole runs with secure aggregation: they end where plain ones do, and the server sees nothing but sums."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedpriv.audit.record.sums import record_of
from fedpriv.audit.record.traffic import knowledge
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.transport import NOT_CONNECTED, NotSent
from fedpriv.errors import FedprivError
from fedpriv.methods.mpfedcon import CLASSES, COUNTS, HOLDERS
from fedpriv.secure import messages
from fedpriv.secure.protocol_checks import expected_mean
from fedpriv.server.secure_sum import SecureSum
from fedpriv.simulation.run import start
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Payload, Sealed, seal, unseal
from fedpriv.wire.message import Refused
from tests.deploy.apart import client_nodes, go_on, hashes, play_apart
from tests.deploy.loopback import Loopback
from tests.marks import slow_but
from tests.simulation.small import SILENT, config, play, resume, simulation

SMALL = {"data.clients": 5, "data.limit": 200, "model.projection": 8, "train.participation": 0.8, "executor.name": "sequential"}
SETTINGS = {**SMALL, "train.rounds": 2, "wire.keep_payloads": "all"}
ON = {**SETTINGS, "wire.secure_aggregation": True}
LINEAR = [
    "fedavg", "fedprox", "scaffold", "feddyn", "fednova", "fedper", "fedrep", "mpfedcon", "moon", "ditto", "apfl", "perfedavg",
    "fedbn",
]  # fmt: skip

EVERY = {**ON, "train.participation": 1.0}
TIGHT = {**ON, "train.max_update_norm": 1e-3, "train.on_refused": "drop"}
UNTRAINED = "none of the 2 rounds had a sum"
OTHERS = "sent the same model before, to a sum over other clients or with other weights"


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [record["metrics"] for record in RunFolder.open(folder).records()]


def of_rounds(warnings: Sequence[str]) -> list[str]:
    """Without the remarks on the run."""
    return [text for text in warnings if text.startswith("round ")]


def weights(folder: Path) -> torch.Tensor:
    weights = load_file(folder / "weights" / "server.safetensors")
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])


def play_in_memory(folder: Path, method: str, **options: Any) -> Simulation:
    """A whole run, and its server at the end."""
    run = simulation(folder, method, **options)
    run.start()
    for _ in run.rounds():
        pass
    return run


@pytest.mark.parametrize("method", slow_but(["mpfedcon"], LINEAR))
def test_a_run_ends_where_a_plain_one_does(tmp_path: Path, method: str) -> None:
    options = {"model.name": "resnet9_narrow"} if method == "fedbn" else {}
    play(tmp_path / "plain", method, **SETTINGS, **options)
    play(tmp_path / "summed", method, **ON, **options)
    plain, summed = weights(tmp_path / "plain"), weights(tmp_path / "summed")
    assert float((plain - summed).norm() / plain.norm()) < 1e-5
    for before, now in zip(metrics(tmp_path / "plain")[1:], metrics(tmp_path / "summed")[1:], strict=True):
        assert now["train_loss"] == pytest.approx(before["train_loss"], rel=1e-4)
        assert now["summed"] == 4 and now["sum_error"] < 1e-8
        assert 1.9 < now["bytes_up"] / before["bytes_up"] < 2.5
    # What the clients hold back in the first round is what they send in a plain run.
    first = "payloads/round-0001"
    held, sent = hashes(tmp_path / "summed" / first, "hidden-*"), hashes(tmp_path / "plain" / first, "client-*")
    assert list(held.values()) == list(sent.values()) and len(held) == 4


@pytest.mark.parametrize("hidden", [(), pytest.param(("statistic.counts",), marks=pytest.mark.slow)], ids=["sent", "masked"])
def test_centres_by_counts_are_summed_as_they_are_merged(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    """The sum has the counts of all its clients together, more than any one of them may send."""
    options = {"method.center_weighting": "counts"}
    options |= {"wire.transforms": [{"name": "mask", "names": hidden}]} if hidden else {}
    plain = play_in_memory(tmp_path / "plain", "mpfedcon", **SETTINGS, **options)
    summed = play_in_memory(tmp_path / "summed", "mpfedcon", **ON, **options)
    assert float((plain.state.row - summed.state.row).norm() / plain.state.row.norm()) < 1e-5
    for name, tensor in plain.state.memory.items():
        torch.testing.assert_close(summed.state.memory[name], tensor, rtol=1e-5, atol=1e-6)
    mean = unseal((tmp_path / "summed" / "payloads" / "round-0001" / "sum.safetensors").read_bytes())
    if not hidden:
        assert int(mean.tensors()[COUNTS].sum()) == mean.num_examples
    assert (COUNTS in mean.names) is not bool(hidden)


def test_a_sum_of_centres_is_kept_with_the_number_of_holders_of_each(tmp_path: Path) -> None:
    """The centre of a class with one holder is that client's, so an audit must know it, as the server does."""
    few = {"data.clients": 3, "train.participation": 1.0, "train.rounds": 1, "data.partition.name": "classes"}
    play(tmp_path / "run", "mpfedcon", **{**ON, **few, "data.partition.classes_per_client": 4})
    evidence = record_of(tmp_path / "run")
    assert any("the sum reveals that client's centre" in text for text in evidence.federation.prepared.notes)
    ((round, number),) = evidence.messages()
    mean = evidence.message(round, number).uploaded
    held = [set(evidence.federation.data.train(client).labels.tolist()) for client in range(3)]
    holders = {label: sum(label in members for members in held) for labels in held for label in labels}
    assert dict(zip(mean[CLASSES].tolist(), mean[HOLDERS].tolist(), strict=True)) == holders
    alone = sum(count == 1 for count in holders.values())
    assert 0 < alone < len(holders)
    (known,) = (text for text in knowledge(evidence)[0] if text.startswith("knows class centres of single clients"))
    where = f"in 1 of 1 kept rounds, only one client in the sum holds some class; most often in round 1: {alone}"
    assert known.endswith(f"{where} of {len(holders)} centres")
    # Runs of earlier versions kept no holders, and can be audited, too.
    sealed = unseal((tmp_path / "run" / "payloads" / "round-0001" / "sum.safetensors").read_bytes())
    without = {name: tensor for name, tensor in sealed.tensors().items() if name != HOLDERS}
    expected = expected_mean(evidence.federation.agreement, 1, evidence.message(round, number).received, 3)
    expected.check(seal(Payload(without, 1, None, num_examples=sealed.num_examples)))


@pytest.mark.parametrize("hidden", ["centers", "classes"])
def test_without_their_classes_no_centres_are_summed(tmp_path: Path, hidden: str) -> None:
    masked = {"wire.transforms": [{"name": "mask", "names": [f"statistic.{hidden}"]}], "train.rounds": 1}
    play(tmp_path / "run", "mpfedcon", **{**ON, **masked})
    mean = unseal((tmp_path / "run" / "payloads" / "round-0001" / "sum.safetensors").read_bytes())
    assert not any(name.startswith("statistic.") for name in mean.names)


def test_a_run_without_a_single_sum_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model is the initial one, and an accuracy would look like a result. It goes on as it ended."""

    def none(self: SecureSum, *uploads: Any) -> None:
        raise Refused("there is none today")

    monkeypatch.setattr(SecureSum, "sum", none)
    with pytest.raises(FedprivError, match=UNTRAINED):
        play(tmp_path / "run", "fedavg", **ON)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.facts["status"] == "failed" and folder.summary() is None and len(folder.records()) == 3
    with pytest.raises(FedprivError, match=UNTRAINED):
        resume(tmp_path / "run")


def test_masks_and_transforms_go_together(tmp_path: Path) -> None:
    noisy = {"wire.transforms": [{"name": "mask", "last": 1}, {"name": "gaussian", "variance": 1e-4}]}
    play(tmp_path / "plain", "fedavg", **SETTINGS, **noisy)
    play(tmp_path / "summed", "fedavg", **ON, **noisy)
    plain, summed = weights(tmp_path / "plain"), weights(tmp_path / "summed")
    assert float((plain - summed).norm() / plain.norm()) < 1e-5


def test_nothing_that_reaches_the_server_is_an_upload(tmp_path: Path) -> None:
    crossed: list[tuple[str, Sealed]] = []
    run = simulation(tmp_path / "run", "mpfedcon", **ON)
    run.taps.append(lambda direction, sealed: crossed.append((direction, sealed)))
    run.start()
    for _ in run.rounds():
        pass
    assert {sealed.kind for direction, sealed in crossed if direction == "up"} == {
        "keys", "letters", "masked", "confirmed", "shares",
    }  # fmt: skip
    assert {sealed.kind for direction, sealed in crossed if direction == "down"} == {
        "weights", "keys", "letters", "members", "confirmed",
    }  # fmt: skip
    names = {name for direction, sealed in crossed if direction == "report" for name in sealed.names}
    assert names <= {"keeps"}
    # A masked upload looks like random numbers: each of its bits is set half of the time, and none tells of the upload.
    words = next(sealed for direction, sealed in crossed if sealed.kind == "masked").tensors()["words"]
    bits = torch.stack([(words >> place) & 1 for place in range(64)]).double().mean(1)
    assert float((bits - 0.5).abs().max()) < 6 * 0.5 / len(words) ** 0.5


def test_the_record_and_the_folder_have_the_sum(tmp_path: Path) -> None:
    play(tmp_path / "run", "mpfedcon", **ON)
    folder = RunFolder.open(tmp_path / "run")
    record, store = list(folder.records())[1], PayloadStore.of(folder)
    assert len(record["summed"]) == 4 and store.clients(1) == []
    mean = unseal((folder.payloads / "round-0001" / "sum.safetensors").read_bytes())
    held = [unseal(path.read_bytes()) for path in sorted((folder.payloads / "round-0001").glob("hidden-*"))]
    examples = [upload.num_examples or 0 for upload in held]
    assert mean.num_examples == sum(examples) and mean.client is None
    name = next(name for name in sorted(mean.names) if name.endswith("weight"))
    by_hand = sum(upload.tensors()[name].double() * n for upload, n in zip(held, examples, strict=True)) / sum(examples)
    torch.testing.assert_close(mean.tensors()[name].double(), by_hand, rtol=1e-6, atol=1e-8)


# --- with clients apart ---------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Ends the server."""


class Losing(Loopback):
    """A loopback that spoils what clients answer in a step of a round's sum, or to its local update."""

    def __init__(self, folder: Path, spoil: Any, method: str = "mpfedcon", **options: Any) -> None:
        super().__init__(client_nodes(folder, config(method, **{**ON, **options})))
        self.spoil = spoil

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        for client, answer in super().exchange(frames, seconds, round):
            assert isinstance(answer, Frame)
            kinds = [unseal(part).kind for part in answer.parts]
            yield from ((client, spoiled) for spoiled in self.spoil(kinds, round, client, answer))


@pytest.mark.parametrize("method", slow_but([], ["fedavg", "scaffold", "mpfedcon"]))
def test_apart_it_has_the_same_bits(tmp_path: Path, method: str) -> None:
    play(tmp_path / "whole", method, **ON)
    play_apart(tmp_path / "apart", method, **ON)
    state = ("checkpoints/server-*.safetensors", "payloads/*/sum*", "payloads/*/report*", "payloads/*/download*", "weights/*")
    assert hashes(tmp_path / "apart", *state) == hashes(tmp_path / "whole", *state)
    assert [numbers["bytes_up"] for numbers in metrics(tmp_path / "apart")] == [
        numbers["bytes_up"] for numbers in metrics(tmp_path / "whole")
    ]


@pytest.mark.parametrize("step", slow_but(["masked"], ["keys", "letters", "masked", "confirmed", "shares"]))
def test_a_client_that_drops_out_is_not_in_the_sum(tmp_path: Path, step: str) -> None:
    """Whatever step it does not take; after its masked upload, what it sent counts."""
    gone: list[int] = []

    def spoil(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if step in kinds and round == 1 and not gone:
            gone.append(client)
        return [] if step in kinds and round == 1 and gone == [client] else [answer]

    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "mpfedcon", warnings, Losing(tmp_path / "run-clients", spoil), **ON)
    records = list(RunFolder.open(folder).records())
    lost = [] if step in ("confirmed", "shares") else gone
    assert sorted(records[1]["summed"]) == sorted(set(participants(folder)) - set(lost))
    assert len(records[2]["summed"]) == 4 and gone


@pytest.mark.parametrize("bad", slow_but(["another's"], ["another's", "the same twice"]))
def test_a_client_with_bad_keys_is_not_in_the_sum(tmp_path: Path, bad: str) -> None:
    """And no other client is named, as would be if the keys were carried to all."""
    rows: dict[int, bytes] = {}

    def spoil(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if "keys" not in kinds or round != 1 or len(rows) > 1:
            return [answer]
        at = kinds.index("keys")
        rows[client] = messages.public(messages.own_key(unseal(answer.parts[at]), round, client))
        if len(rows) < 2:
            return [answer]
        wrong = rows[min(rows)] if bad == "another's" else rows[client][: messages.KEY] * 2
        parts = list(answer.parts)
        parts[at] = messages.table("keys", round, client, {client: wrong}).data
        return [replace(answer, parts=tuple(parts))]

    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "mpfedcon", warnings, Losing(tmp_path / "run-clients", spoil), **ON)
    records, lost = list(RunFolder.open(folder).records()), max(rows)
    assert sorted(records[1]["summed"]) == sorted(set(participants(folder)) - {lost})
    assert len(records[2]["summed"]) == 4
    (warning,) = of_rounds(warnings)
    assert f"client {lost} " in warning and "refused" in warning


@pytest.mark.parametrize("step", ["letters", "shares"])
def test_a_table_with_too_few_rows_costs_no_other_client_its_part(tmp_path: Path, step: str) -> None:
    """Its sender is named; after its masked upload, what it sent counts."""
    short: list[int] = []

    def spoil(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if step not in kinds or round != 1 or short:
            return [answer]
        short.append(client)
        rows = messages.rows_of(unseal(answer.parts[0]), kinds[0], round, client)  # type: ignore[arg-type]
        rows.pop(max(rows))
        return [replace(answer, parts=(messages.table(kinds[0], round, client, rows).data,))]  # type: ignore[arg-type]

    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "mpfedcon", warnings, Losing(tmp_path / "run-clients", spoil), **ON)
    lost = short if step == "letters" else []
    assert sorted(RunFolder.open(folder).records()[1]["summed"]) == sorted(set(participants(folder)) - set(lost))
    (warning,) = of_rounds(warnings)
    assert f"what client {short[0]} sent for the sum is refused: its message of kind {step} has no row" in warning


def participants(folder: Path) -> list[int]:
    stored = list((folder / "payloads" / "round-0001").glob("report-*"))
    asked = RunFolder.open(folder).config()
    run = simulation(folder.parent / "again", "mpfedcon", **ON, **{"train.on_nan": "drop"})  # as deployments do
    assert asked.fingerprint() == run.config.fingerprint() and stored
    return run.participants(1)


def test_of_fewer_than_min_uploads_no_sum_is_opened(tmp_path: Path) -> None:
    """The next round sends the same model, and the difference of two sums would be an upload of client 4."""
    lists: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}

    def lose(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        lists[round] |= set(kinds)
        return without_client_4(kinds, round, client, answer)

    options, warnings = {**EVERY, "train.min_uploads": 5}, list[str]()
    folder = play_apart(tmp_path / "run", "fedavg", warnings, Losing(tmp_path / "clients", lose, "fedavg", **options), **options)
    first, second = RunFolder.open(folder).records()[1:]
    assert "masked" in lists[1] and not lists[1] & {"confirmed", "shares"} and {"confirmed", "shares"} <= lists[2]
    assert not first.keys() & {"summed", "opened"} and first["metrics"]["too_few_uploads"] == 1
    assert second["summed"] == [0, 1, 2, 3, 4]
    assert PayloadStore.of(RunFolder.open(folder)).mean(1) is None
    (warning,) = (text for text in warnings if "the model stays as it is" in text)
    assert warning.endswith("4 of 5 clients are left for the sum; 5 are needed (train.min_uploads)")


SCHEDULE = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]
STANDING = {**ON, "train.rounds": 4, "train.participation": 1.0, "train.selection": "schedule", "train.schedule": SCHEDULE}


@pytest.mark.parametrize("fault", ["not finite", "no upload"])
def test_over_a_model_that_stands_still_a_second_sum_is_of_the_same_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Also where the server was started again in between."""

    def no_upload(*of: Any) -> Any:
        raise Refused("it is none")

    def ended(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            raise Killed

    chosen = config("fedavg", **STANDING, run_dir=str(tmp_path / "run"))
    with monkeypatch.context() as patch:
        if fault == "not finite":
            patch.setattr("fedpriv.server.next_state.not_finite", lambda state: "the model")
        else:
            patch.setattr(SecureSum, "_mean", no_upload)
        with pytest.raises(Killed):
            start(chosen, tmp_path, SILENT[0], ended, SILENT[2])
    resume(tmp_path / "run")
    records = RunFolder.open(tmp_path / "run").records()[1:]
    kept = [0, 1, 2] if fault == "not finite" else None
    assert [record.get("summed") for record in records] == [kept, None, [0, 1, 2], [0, 1, 2, 3]]
    assert [record.get("opened") for record in records] == [[0, 1, 2], [0, 1, 2], None, None]
    # And an audit has all of the sums that the server kept, with the clients in them.
    evidence = record_of(tmp_path / "run")
    assert [round for round, _ in evidence.messages()] == [round for round, record in enumerate(records, 1) if "summed" in record]
    assert all(evidence.message(*key).parts == len(records[key[0] - 1]["summed"]) for key in evidence.messages())


def test_a_run_whose_sums_all_spoil_the_model_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.server.next_state.not_finite", lambda state: "the model")
    with pytest.raises(FedprivError, match=UNTRAINED):
        play(tmp_path / "run", "fedavg", **ON)


def test_without_a_majority_the_model_stays(tmp_path: Path) -> None:
    def spoil(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        return [] if "masked" in kinds and round == 1 and client != 0 else [answer]

    warnings: list[str] = []
    folder = play_apart(tmp_path / "run", "scaffold", warnings, Losing(tmp_path / "run-clients", spoil, "scaffold"), **ON)
    assert "summed" not in (record := metrics(folder)[1]) and record["too_few_uploads"] == 1
    assert any("there is no sum, so the model stays as it is" in text for text in warnings)
    store = PayloadStore.of(RunFolder.open(folder))
    first, second = (store.download(round) for round in (1, 2))
    assert first is not None and second is not None
    before, after = first.tensors(), second.tensors()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in after)
    # Nor do the local updates count: the server names no state of that round.
    clients, last = load_file(folder / "checkpoints" / "server-000002.safetensors")["clients"].tolist()
    assert len(clients) == 4 and set(last) == {2}


class Twice(Losing):
    """Every frame reaches its client twice."""

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        list(super().exchange(frames, seconds, round))
        return super().exchange(frames, seconds, round)


def test_frames_that_are_sent_again_change_nothing(tmp_path: Path) -> None:
    grid = Twice(tmp_path / "run-clients", lambda kinds, round, client, answer: [answer])
    warnings: list[str] = []
    play_apart(tmp_path / "run", "mpfedcon", warnings, grid, **ON)
    play(tmp_path / "whole", "mpfedcon", **ON)
    assert not of_rounds(warnings) and hashes(tmp_path / "run", "weights/*") == hashes(tmp_path / "whole", "weights/*")


def killed_in_a_sum(tmp_path: Path, step: str) -> Losing:
    """A run of five clients whose server was killed when client 4 answered that step of round 2's sum."""

    def die(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if step in kinds and round == 2 and client == 4:
            raise Killed
        return [answer]

    options = {"train.participation": 1.0}
    grid = Losing(tmp_path / "run-clients", die, **options)
    with pytest.raises(Killed):
        play_apart(tmp_path / "run", "mpfedcon", grid=grid, **{**ON, **options})
    return grid


@pytest.mark.slow
def test_a_killed_round_is_summed_again_over_the_same_clients_alone(tmp_path: Path) -> None:
    """The difference of two sums would be an upload."""
    grid = killed_in_a_sum(tmp_path, "shares")

    def without_client_3(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        return [] if "masked" in kinds and client == 3 and round == 2 else [answer]

    warnings: list[str] = []
    grid.spoil = without_client_3
    go_on(tmp_path / "run", grid, warnings)
    assert "summed" not in metrics(tmp_path / "run")[2]
    assert any(OTHERS in text for text in warnings)


@pytest.mark.slow
def test_no_masked_upload_leaves_for_a_second_sum_over_other_clients(tmp_path: Path) -> None:
    """Not even where no sum was revealed to this client: others may have revealed both, whose difference is an upload."""
    grid, sent = killed_in_a_sum(tmp_path, "masked"), list[int]()

    def without_client_3(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if "masked" in kinds and round == 2:
            sent.append(client)
        return [] if "keys" in kinds and client == 3 and round == 2 else [answer]

    grid.spoil = without_client_3
    go_on(tmp_path / "run", grid)
    assert not sent and "summed" not in metrics(tmp_path / "run")[2]


@pytest.mark.slow
def test_a_killed_round_that_is_the_same_again_is_summed(tmp_path: Path) -> None:
    def die(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if "shares" in kinds and round == 2 and client != 0:
            raise Killed
        return [answer]

    grid = Losing(tmp_path / "run-clients", die)
    with pytest.raises(Killed):
        play_apart(tmp_path / "run", "mpfedcon", grid=grid, **ON)
    grid.spoil = lambda kinds, round, client, answer: [answer]
    go_on(tmp_path / "run", grid)
    play(tmp_path / "whole", "mpfedcon", **ON)
    assert hashes(tmp_path / "run", "weights/*") == hashes(tmp_path / "whole", "weights/*")


class Altered(Losing):
    """Some clients are sent another model in a round."""

    def __init__(self, folder: Path, method: str, clients: Container[int], round: int, **options: Any) -> None:
        super().__init__(folder, all_of_them, method, **options)
        self.altered, self.round = clients, round

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        asked = dict(frames)
        for client, frame in frames.items():
            if round == self.round and client in self.altered and frame.entries[-1]["do"] == "train":
                *first, model = frame.parts
                other = {
                    name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in unseal(model).tensors().items()
                }
                asked[client] = replace(frame, parts=(*first, seal(Payload(other, round)).data))
        return super().exchange(asked, seconds, round)


@pytest.mark.slow
def test_a_killed_round_is_summed_again_over_the_same_uploads_alone(tmp_path: Path) -> None:
    """If some uploads were others, those that are the same would cancel out."""
    killed_in_a_sum(tmp_path, "masked")
    warnings: list[str] = []
    go_on(tmp_path / "run", Altered(tmp_path / "run-clients", "mpfedcon", range(5), 2, **EVERY), warnings)
    assert any("round 2 was summed before, over another upload of client 3" in text for text in warnings)
    assert "summed" not in metrics(tmp_path / "run")[2]


def test_an_upload_is_not_summed_over_other_clients_in_another_run(tmp_path: Path) -> None:
    """Runs of one config and seed begin with the same uploads, and the difference of two sums would be one."""
    here = client_nodes(tmp_path / "clients", config("fedavg", **ON))
    play_apart(tmp_path / "first", "fedavg", grid=Loopback(here), **ON)
    for name, more, summed in (("more", {"train.participation": 1.0}, False), ("same", {}, True), ("seed", {"seed": 1}, True)):
        warnings: list[str] = []
        play_apart(tmp_path / name, "fedavg", warnings, Loopback(here), **{**ON, **more})
        assert ("summed" in metrics(tmp_path / name)[1]) == summed
        assert any(OTHERS in warning for warning in warnings) != summed
        assert "summed" in metrics(tmp_path / name)[2]


def without_client_4(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
    """Its masked upload of round 1 is lost."""
    return [] if "masked" in kinds and (round, client) == (1, 4) else [answer]


def all_of_them(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
    return [answer]


@pytest.mark.parametrize(
    ("first", "second", "summed"),
    [
        (all_of_them, without_client_4, None),
        (without_client_4, all_of_them, None),
        (all_of_them, all_of_them, [0, 1, 2, 3, 4]),
        (without_client_4, without_client_4, [0, 1, 2, 3]),
    ],
)
def test_an_upload_is_not_summed_over_other_active_clients_in_another_run(
    tmp_path: Path, first: Any, second: Any, summed: list[int] | None
) -> None:
    """In both runs the same clients mask their uploads. In between, their processes are started again."""
    play_apart(tmp_path / "first", "fedavg", grid=Losing(tmp_path / "clients", first, "fedavg", **EVERY), **EVERY)
    warnings: list[str] = []
    grid = Losing(tmp_path / "clients", second, "fedavg", **EVERY)
    records = list(RunFolder.open(play_apart(tmp_path / "second", "fedavg", warnings, grid, **EVERY)).records())
    assert records[1].get("summed") == summed
    assert any(OTHERS in warning for warning in warnings) == (summed is None)
    assert "summed" in records[2]["metrics"]


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedavg", {"method.weights": "uniform"}), pytest.param("fednova", {}, marks=pytest.mark.slow)],
    ids=["weights", "method"],
)
def test_an_upload_is_not_summed_with_other_weights_in_another_run(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    """From two sums over the same clients with other weights, that of the client whose weight is odd could be computed. FedNova
    divides by the number of steps, and a statistic of its own goes with the same model."""
    uneven = {**EVERY, "data.limit": 201}
    grid = Loopback(client_nodes(tmp_path / "clients", config("fedavg", **uneven)))
    play_apart(tmp_path / "first", "fedavg", grid=grid, **uneven)
    warnings: list[str] = []
    play_apart(tmp_path / "second", method, warnings, grid, **uneven, **options)
    assert "summed" not in metrics(tmp_path / "second")[1] and any(OTHERS in warning for warning in warnings)
    assert "summed" in metrics(tmp_path / "second")[2]


def test_a_round_adds_one_file_to_the_sums_that_a_client_remembers(tmp_path: Path) -> None:
    play_apart(tmp_path / "run", "fedavg", **EVERY)
    client = tmp_path / "run-clients" / "client-0"
    assert sorted(path.name for path in client.iterdir()) == ["runs", "secret", "summed"]
    assert len(list((client / "summed").iterdir())) == 2 and "summed" in metrics(tmp_path / "run")[2]


class Unasked(Losing):
    """Client 3 is not told who is in the sum of round 1."""

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        kinds = {unseal(part).kind for frame in frames.values() for part in frame.parts}
        lost = {3} if "members" in kinds and round == 1 else set[int]()
        return super().exchange({client: frame for client, frame in frames.items() if client not in lost}, seconds, round)


def test_a_client_that_has_refused_a_sum_reveals_no_shares_for_it(tmp_path: Path) -> None:
    """Clients 0 to 2 know the first sum, which is without client 4. They refuse a second one, which the others confirm: with one
    of the three that would be a majority, and the server goes on as if they had confirmed it, too."""

    def lie(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if OTHERS not in str(answer.error):
            return [answer]
        refused.append(client)
        made_up = {other: bytes(messages.WIDTHS["confirmed"]) for other in range(5) if other != client}
        return [Frame({"entries": [{"message": 0}]}, (messages.table("confirmed", round, client, made_up).data,))]

    refused: list[int] = []
    play_apart(tmp_path / "first", "fedavg", grid=Unasked(tmp_path / "clients", without_client_4, "fedavg", **EVERY), **EVERY)
    assert list(RunFolder.open(tmp_path / "first").records())[1]["summed"] == [0, 1, 2, 3]
    play_apart(tmp_path / "second", "fedavg", grid=Losing(tmp_path / "clients", lie, "fedavg", **EVERY), **EVERY)
    assert "summed" not in metrics(tmp_path / "second")[1] and refused == [0, 1, 2]


def test_there_is_no_sum_of_clients_that_were_sent_different_models(tmp_path: Path) -> None:
    warnings: list[str] = []
    grid = Altered(tmp_path / "clients", "fedavg", {3}, 1, **EVERY)
    folder = play_apart(tmp_path / "run", "fedavg", warnings, grid, **EVERY)
    assert "summed" not in metrics(folder)[1] and "summed" in metrics(folder)[2]
    assert any("the encrypted shares of client" in warning for warning in warnings)


class Agreeing(Losing):
    """All clients but one agree to other terms."""

    def __init__(self, folder: Path, but: int, **options: Any) -> None:
        super().__init__(folder, all_of_them, "fedavg", **options)
        self.but = but

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        asked = dict(frames)
        for client, frame in frames.items():
            first, *others = frame.entries
            if client != self.but and first["do"] == "agree":
                declared = {**first["declared"], "most_samples": 2**31 - 1}
                asked[client] = replace(frame, head={**frame.head, "entries": [{**first, "declared": declared}, *others]})
        return super().exchange(asked, seconds, round)


def test_there_is_no_sum_of_clients_that_have_agreed_to_different_terms(tmp_path: Path) -> None:
    """By the most samples of a client the weights are scaled: those of the others would be next to nothing."""
    warnings: list[str] = []
    with pytest.raises(FedprivError, match=UNTRAINED):
        play_apart(tmp_path / "run", "fedavg", warnings, Agreeing(tmp_path / "clients", 3, **EVERY), **EVERY)
    assert not any("summed" in numbers for numbers in metrics(tmp_path / "run"))
    assert any("the encrypted shares of client" in warning for warning in warnings)


def test_a_client_checks_what_no_server_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``train.max_update_norm`` holds for each upload, and with a sum only its sender can check it. The server, which sets the
    bound, is not told the norm."""
    warnings: list[str] = []
    with pytest.raises(FedprivError, match=UNTRAINED):
        play_apart(tmp_path / "run", "fedper", warnings, **TIGHT)
    record = RunFolder.open(tmp_path / "run").records()[1]
    assert "summed" not in record["metrics"]
    assert {entry["reason"] for entry in record["missing"]} == {"its upload cannot be summed; the client's own log says why"}
    assert not any("norm" in text for text in warnings) and "over 0.001" in capsys.readouterr().err
    assert not list((tmp_path / "run-clients").glob("client-*/runs/run/states/client-*"))


def test_a_simulation_keeps_no_state_of_a_client_whose_upload_cannot_be_summed(tmp_path: Path) -> None:
    with pytest.raises(FedprivError, match=UNTRAINED):
        play(tmp_path / "run", "fedper", **TIGHT)
    assert "summed" not in metrics(tmp_path / "run")[1] and not list((tmp_path / "run" / "clients").glob("client-*"))


def test_clients_keep_no_state_of_a_round_without_a_sum(tmp_path: Path) -> None:
    """Their local updates do not count, so no later round goes on from them."""

    def spoil(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        return [] if "masked" in kinds and round == 2 and client != 0 else [answer]

    options = {**EVERY, "train.rounds": 3}
    grid = Losing(tmp_path / "run-clients", spoil, "fedper", **options)
    folder = play_apart(tmp_path / "run", "fedper", grid=grid, **options)
    assert [numbers.get("summed") for numbers in metrics(folder)[1:]] == [5, None, 5]
    states = (tmp_path / "run-clients").glob("client-*/runs/run/states/client-*")
    assert {int(path.stem.rpartition("-")[2]) for path in states} == {1, 3}  # the checkpoint before the last names the former


class Leaving(Loopback):
    """Client 4 is not connected any more when the letters of round 1 are carried; ``carried``: bytes of what was sent in it."""

    carried = 0

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        there = dict(frames)
        if round == 1 and 4 in frames and frames[4].entries[-1]["do"] == "step" and unseal(frames[4].parts[-1]).kind == "letters":
            del there[4]
            yield 4, NotSent(NOT_CONNECTED)
        if round == 1:
            last = [frame.parts[-1] for frame in there.values() if frame.entries[-1]["do"] in ("train", "step")]
            self.carried += sum(map(len, last))
        yield from super().exchange(there, seconds, round)


def test_a_step_that_was_not_sent_is_not_counted(tmp_path: Path) -> None:
    grid = Leaving(client_nodes(tmp_path / "run-clients", config("fedavg", **EVERY)))
    record = RunFolder.open(play_apart(tmp_path / "run", "fedavg", grid=grid, **EVERY)).records()[1]
    assert record["summed"] == [0, 1, 2, 3] and record["metrics"]["bytes_down"] == grid.carried
