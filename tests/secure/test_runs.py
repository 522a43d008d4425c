"""Whole runs with secure aggregation: they end where plain ones do, and the server sees nothing but sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedpriv.audit.record.sums import record_of
from fedpriv.audit.record.traffic import knowledge
from fedpriv.errors import FedprivError
from fedpriv.methods.mpfedcon import CLASSES, COUNTS, HOLDERS
from fedpriv.secure.protocol_checks import expected_mean
from fedpriv.server.secure_sum import SecureSum
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Payload, Sealed, seal, unseal
from fedpriv.wire.message import Refused
from tests.deploy.apart import hashes
from tests.marks import slow_but
from tests.secure.lossy import ON, SETTINGS, UNTRAINED, metrics
from tests.simulation.small import play, resume, simulation

LINEAR = [
    "fedavg", "fedprox", "scaffold", "feddyn", "fednova", "fedper", "fedrep", "mpfedcon", "moon", "ditto", "apfl", "perfedavg",
    "fedbn",
]  # fmt: skip


def weights(folder: Path) -> torch.Tensor:
    weights = load_file(folder / "weights" / "server.safetensors")
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])


def agree(plain: torch.Tensor, summed: torch.Tensor) -> bool:
    return float((plain - summed).norm() / plain.norm()) < 1e-5


def sum_of_round_1(folder: Path) -> Sealed:
    return unseal((folder / "payloads" / "round-0001" / "sum.safetensors").read_bytes())


def play_in_memory(run: Simulation) -> Simulation:
    """A whole run, and its server at the end."""
    run.start()
    for _ in run.rounds():
        pass
    return run


@pytest.mark.parametrize("method", slow_but(["mpfedcon"], LINEAR))
def test_a_run_ends_where_a_plain_one_does(tmp_path: Path, method: str) -> None:
    options = {"model.name": "resnet9_narrow"} if method == "fedbn" else {}
    play(tmp_path / "plain", method, **SETTINGS, **options)
    play(tmp_path / "summed", method, **ON, **options)
    assert agree(weights(tmp_path / "plain"), weights(tmp_path / "summed"))
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
    plain = play_in_memory(simulation(tmp_path / "plain", "mpfedcon", **SETTINGS, **options))
    summed = play_in_memory(simulation(tmp_path / "summed", "mpfedcon", **ON, **options))
    assert agree(plain.state.row, summed.state.row)
    for name, tensor in plain.state.memory.items():
        torch.testing.assert_close(summed.state.memory[name], tensor, rtol=1e-5, atol=1e-6)
    mean = sum_of_round_1(tmp_path / "summed")
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
    sealed = sum_of_round_1(tmp_path / "run")
    without = {name: tensor for name, tensor in sealed.tensors().items() if name != HOLDERS}
    expected = expected_mean(evidence.federation.agreement, 1, evidence.message(round, number).received, 3)
    expected.check(seal(Payload(without, 1, None, num_examples=sealed.num_examples)))


@pytest.mark.parametrize("hidden", ["centers", "classes"])
def test_without_their_classes_no_centres_are_summed(tmp_path: Path, hidden: str) -> None:
    masked = {"wire.transforms": [{"name": "mask", "names": [f"statistic.{hidden}"]}], "train.rounds": 1}
    play(tmp_path / "run", "mpfedcon", **{**ON, **masked})
    assert not any(name.startswith("statistic.") for name in sum_of_round_1(tmp_path / "run").names)


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
    assert agree(weights(tmp_path / "plain"), weights(tmp_path / "summed"))


def test_nothing_that_reaches_the_server_is_an_upload(tmp_path: Path) -> None:
    crossed: list[tuple[str, Sealed]] = []
    run = simulation(tmp_path / "run", "mpfedcon", **ON)
    run.taps.append(lambda direction, sealed: crossed.append((direction, sealed)))
    play_in_memory(run)
    up, down = ({sealed.kind for at, sealed in crossed if at == direction} for direction in ("up", "down"))
    assert up == {"keys", "letters", "masked", "confirmed", "shares"}
    assert down == {"weights", "keys", "letters", "members", "confirmed"}
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
    mean = sum_of_round_1(folder.path)
    held = [unseal(path.read_bytes()) for path in sorted((folder.payloads / "round-0001").glob("hidden-*"))]
    examples = [upload.num_examples or 0 for upload in held]
    assert mean.num_examples == sum(examples) and mean.client is None
    name = next(name for name in sorted(mean.names) if name.endswith("weight"))
    by_hand = sum(upload.tensors()[name].double() * n for upload, n in zip(held, examples, strict=True)) / sum(examples)
    torch.testing.assert_close(mean.tensors()[name].double(), by_hand, rtol=1e-6, atol=1e-8)


def test_a_run_whose_sums_all_spoil_the_model_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.server.next_state.not_finite", lambda state: "the model")
    with pytest.raises(FedprivError, match=UNTRAINED):
        play(tmp_path / "run", "fedavg", **ON)
