"""Two sums whose difference would be a client's upload: the second one is refused. And sums over what is not the same."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.audit.record.sums import record_of
from fedpriv.deploy.frames import Frame
from fedpriv.errors import FedprivError
from fedpriv.secure import messages
from fedpriv.server.secure_sum import SecureSum
from fedpriv.simulation.run import start
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Payload, seal, unseal
from fedpriv.wire.message import Refused
from tests.deploy.apart import hashes
from tests.secure.lossy import EVERY, ON, OTHERS, UNTRAINED, Answers, Apart, Frames, Killed, Lossy, killed, lost, metrics, whole
from tests.simulation.small import SILENT, config, play, resume

ALL = [0, 1, 2, 3, 4]
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


def killed_in_a_sum(folder: Path, step: str) -> Apart:
    """A run of all clients whose server was killed when client 4 answered that step of round 2's sum."""
    run = Apart(folder)
    with pytest.raises(Killed):
        run.play(killed([4], step), **EVERY)
    return run


@pytest.mark.slow
def test_a_killed_round_is_summed_again_over_the_same_clients_alone(tmp_path: Path) -> None:
    """The difference of two sums would be an upload."""
    run = killed_in_a_sum(tmp_path / "run", "shares").go_on(lost([3], round=2))
    assert run.summed[1] is None and run.warned(OTHERS)


@pytest.mark.slow
def test_no_masked_upload_leaves_for_a_second_sum_over_other_clients(tmp_path: Path) -> None:
    """Not even where no sum was revealed to this client: others may have revealed both, whose difference is an upload."""
    sent: list[int] = []

    def answers(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if "masked" in kinds and round == 2:
            sent.append(client)
        return lost([3], 2, "keys")(kinds, round, client, answer)

    run = killed_in_a_sum(tmp_path / "run", "masked").go_on(answers)
    assert not sent and run.summed[1] is None


@pytest.mark.slow
def test_a_killed_round_that_is_the_same_again_is_summed(tmp_path: Path) -> None:
    run = Apart(tmp_path / "run")
    with pytest.raises(Killed):
        run.play(killed(range(1, 5), "shares"))
    run.go_on()
    play(tmp_path / "whole", "mpfedcon", **ON)
    assert hashes(run.folder, "weights/*") == hashes(tmp_path / "whole", "weights/*")


def altered(folder: Path, clients: Container[int], at: int) -> Lossy:
    """Some clients are sent another model in a round."""

    def other(frame: Frame) -> Frame:
        *first, model = frame.parts
        halves = {name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in unseal(model).tensors().items()}
        return replace(frame, parts=(*first, seal(Payload(halves, at)).data))

    def asked(frames: Frames, round: int) -> Frames:
        return {
            client: other(frame) if round == at and client in clients and frame.entries[-1]["do"] == "train" else frame
            for client, frame in frames.items()
        }

    return Lossy(folder, asked=asked)


@pytest.mark.slow
def test_a_killed_round_is_summed_again_over_the_same_uploads_alone(tmp_path: Path) -> None:
    """If some uploads were others, those that are the same would cancel out."""
    run = killed_in_a_sum(tmp_path / "run", "masked").go_on(altered(tmp_path / "clients", range(5), 2))
    assert run.warned("round 2 was summed before, over another upload of client 3") and run.summed[1] is None


def test_an_upload_is_not_summed_over_other_clients_in_another_run(tmp_path: Path) -> None:
    """Runs of one config and seed begin with the same uploads, and the difference of two sums would be one."""
    here = Lossy(tmp_path / "clients")
    Apart(tmp_path / "first", "fedavg").play(here)
    for name, more, summed in (("more", {"train.participation": 1.0}, False), ("same", {}, True), ("seed", {"seed": 1}, True)):
        run = Apart(tmp_path / name, "fedavg").play(here, **more)
        assert (run.summed[0] is not None) == summed != run.warned(OTHERS)
        assert run.summed[1] is not None


@pytest.mark.parametrize(
    ("first", "second", "summed"),
    [(whole, lost([4]), None), (lost([4]), whole, None), (whole, whole, ALL), (lost([4]), lost([4]), ALL[:4])],
)
def test_an_upload_is_not_summed_over_other_active_clients_in_another_run(
    tmp_path: Path, first: Answers, second: Answers, summed: list[int] | None
) -> None:
    """In both runs the same clients mask their uploads. In between, their processes are started again."""
    Apart(tmp_path / "first", "fedavg").play(first, **EVERY)
    run = Apart(tmp_path / "second", "fedavg").play(second, **EVERY)
    assert run.summed[0] == summed and run.warned(OTHERS) == (summed is None)
    assert run.summed[1] is not None


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedavg", {"method.weights": "uniform"}), pytest.param("fednova", {}, marks=pytest.mark.slow)],
    ids=["weights", "method"],
)
def test_an_upload_is_not_summed_with_other_weights_in_another_run(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    """From two sums over the same clients with other weights, that of the client whose weight is odd could be computed. FedNova
    divides by the number of steps, and a statistic of its own goes with the same model."""
    uneven = {**EVERY, "data.limit": 201}
    here = Lossy(tmp_path / "clients")
    Apart(tmp_path / "first", "fedavg").play(here, **uneven)
    run = Apart(tmp_path / "second", method).play(here, **uneven, **options)
    assert run.summed[0] is None and run.warned(OTHERS) and run.summed[1] is not None


def test_a_round_adds_one_file_to_the_sums_that_a_client_remembers(tmp_path: Path) -> None:
    run = Apart(tmp_path / "run", "fedavg").play(**EVERY)
    client = tmp_path / "clients" / "client-0"
    assert sorted(path.name for path in client.iterdir()) == ["runs", "secret", "summed"]
    assert len(list((client / "summed").iterdir())) == 2 and run.summed[1] is not None


def test_a_client_that_has_refused_a_sum_reveals_no_shares_for_it(tmp_path: Path) -> None:
    """Clients 0 to 2 know the first sum, which is without client 4. They refuse a second one, which the others confirm: with one
    of the three that would be a majority, and the server goes on as if they had confirmed it, too."""

    def untold(frames: Frames, round: int) -> Frames:
        """Client 3 is not told who is in the sum of round 1."""
        kinds = {unseal(part).kind for frame in frames.values() for part in frame.parts}
        gone = {3} if "members" in kinds and round == 1 else set[int]()
        return {client: frame for client, frame in frames.items() if client not in gone}

    def lie(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if OTHERS not in str(answer.error):
            return [answer]
        refused.append(client)
        made_up = {other: bytes(messages.WIDTHS["confirmed"]) for other in range(5) if other != client}
        return [Frame({"entries": [{"message": 0}]}, (messages.table("confirmed", round, client, made_up).data,))]

    refused: list[int] = []
    first = Apart(tmp_path / "first", "fedavg").play(Lossy(tmp_path / "clients", lost([4]), untold), **EVERY)
    assert first.summed[0] == [0, 1, 2, 3]
    second = Apart(tmp_path / "second", "fedavg").play(lie, **EVERY)
    assert second.summed[0] is None and refused == [0, 1, 2]


def test_there_is_no_sum_of_clients_that_were_sent_different_models(tmp_path: Path) -> None:
    run = Apart(tmp_path / "run", "fedavg").play(altered(tmp_path / "clients", {3}, 1), **EVERY)
    assert run.summed == [None, ALL] and run.warned("the encrypted shares of client")


def test_there_is_no_sum_of_clients_that_have_agreed_to_different_terms(tmp_path: Path) -> None:
    """By the most samples of a client the weights are scaled: those of the others would be next to nothing."""

    def agreeing(client: int, frame: Frame) -> Frame:
        first, *others = frame.entries
        if client == 3 or first["do"] != "agree":
            return frame
        declared = {**first["declared"], "most_samples": 2**31 - 1}
        return replace(frame, head={**frame.head, "entries": [{**first, "declared": declared}, *others]})

    def asked(frames: Frames, round: int) -> Frames:
        return {client: agreeing(client, frame) for client, frame in frames.items()}

    run = Apart(tmp_path / "run", "fedavg")
    with pytest.raises(FedprivError, match=UNTRAINED):
        run.play(Lossy(tmp_path / "clients", asked=asked), **EVERY)
    assert not any("summed" in numbers for numbers in metrics(run.folder)) and run.warned("the encrypted shares of client")
