"""A run is a function of its config: not of what ran before, of the order of the clients, or of a cache."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.errors import UsageError
from fedpriv.methods.base import ServerState
from fedpriv.parameters import ParameterSpace
from fedpriv.server.clients import Instruction
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Payload, seal
from tests.marks import slow_but
from tests.simulation.small import computed, play, simulation

CASES = pytest.mark.parametrize(
    ("method", "overrides"),
    slow_but(
        ["fedavg"],
        [
            ("mpfedcon", {"wire.transforms": [{"name": "cast"}]}),
            ("mpfedcon", {"method.negative": "R2", "method.projector_init": "per_client"}),
            ("fedavg", {"data.augment": "crop_flip"}),
            ("local", {}),
        ],
    ),
    ids=["mpfedcon-cast", "mpfedcon-R2", "fedavg-augmented", "local"],
)


def disturb() -> None:
    """Other code draws from the global generators too."""
    torch.manual_seed(99)
    torch.rand(7)
    random.seed(99)
    np.random.seed(99)


@CASES
def test_the_same_config_gives_the_same_run(
    tmp_path: Path, reference: Callable[..., Path], method: str, overrides: dict[str, Any]
) -> None:
    disturb()
    play(tmp_path / "again", method, **overrides)
    assert computed(tmp_path / "again") == computed(reference(method, **overrides))


def test_another_seed_gives_another_run(reference: Callable[..., Path]) -> None:
    first, second = (computed(reference("mpfedcon", **overrides)) for overrides in ({}, {"seed": 1}))
    for what in ("partition.safetensors", "weights/server.safetensors", "metrics"):
        assert first[what] != second[what]
    kept = [{name for name in run if name.startswith("clients/client-")} for run in (first, second)]
    assert kept[0] and kept[0] != kept[1], "who took part, and when"


def test_the_seed_of_the_partition_can_be_held_while_the_run_s_changes(reference: Callable[..., Path]) -> None:
    first, second = (computed(reference("mpfedcon", **overrides)) for overrides in ({}, {"seed": 1, "data.partition.seed": 0}))
    assert first["partition.safetensors"] == second["partition.safetensors"]
    assert first["weights/server.safetensors"] != second["weights/server.safetensors"]


def uploaders(run: Simulation) -> list[tuple[int, int | None]]:
    """The (round, client) of every upload, in order."""
    seen: list[tuple[int, int | None]] = []
    run.taps.append(lambda way, sealed: seen.append((sealed.round, sealed.client)) if way == "up" else None)
    run.start()
    for _ in run.rounds():
        disturb()
    return seen


@pytest.mark.slow
def test_who_takes_part_depends_on_seed_and_round_alone(tmp_path: Path) -> None:
    small = {"train.rounds": 6, "train.local_epochs": 1}
    seen = uploaders(simulation(tmp_path / "a", "fedavg", **small))
    assert seen == uploaders(simulation(tmp_path / "b", "fedrep", **small, **{"method.head_epochs": 0, "train.lr": 0.001}))
    assert seen != uploaders(simulation(tmp_path / "c", "fedavg", **small, seed=3))
    assert len(seen) == len(set(seen)) == 18
    assert len({tuple(client for r, client in seen if r == round) for round in range(1, 7)}) > 1


def test_local_gives_every_client_a_update_before_any_has_two(tmp_path: Path) -> None:
    run = simulation(tmp_path / "run", "local", **{"train.rounds": 5, "train.participation": 0.2, "method.epochs": 1})
    run.start()
    for _ in run.rounds():
        pass
    assert sorted(run.progress.clients) == list(range(10))


@CASES
def test_a_update_depends_on_seed_round_and_client_alone(tmp_path: Path, method: str, overrides: dict[str, Any]) -> None:
    """In any order and in any company, a client sends and keeps the same bits; with and without a past."""
    run = simulation(tmp_path / "run", method, **overrides)
    run.start()
    for round in (1, 2):
        forward = updates(run, round, [0, 3, 4, 8])
        disturb()
        assert updates(run, round, [8, 4, 3, 0]) == forward
        assert updates(run, round, [4]) == {4: forward[4]}
        assert len({str(result) for result in forward.values()}) == 4
        run.run_round()


def updates(run: Simulation, round: int, clients: list[int]) -> dict[int, Any]:
    """What each client sends (digest), keeps (bytes) and reports, for one order of the clients."""
    draft = run.federation.method.download(run.state, round)
    instruction = Instruction(round, clients, None if draft is None else seal(draft), run.progress.clients)
    return {
        answer.client: (
            answer.upload and answer.upload.digest,
            answer.report.digest,
            [path.read_bytes() for path in run.folder.clients.glob(f"client-{answer.client:06d}-{round:06d}.*")],
        )
        for answer in run.executor.train(instruction)
    }


@pytest.mark.parametrize(
    ("method", "own"),
    slow_but(
        ["fedrep"],
        [("mpfedcon", {"method.negative": n, "method.head_epochs": 3, "method.mu": 1.0}) for n in ("R1", "R2", "R3")]
        + [("fedrep", {"method.head_epochs": 3}), ("fedavg-ft", {"method.ft_epochs": 3})],
    ),
    ids=["mpfedcon-R1", "mpfedcon-R2", "mpfedcon-R3", "fedrep", "fedavg-ft"],
)
def test_caching_features_changes_nothing_but_rounding(tmp_path: Path, method: str, own: dict[str, Any]) -> None:
    rows, accuracies = [], []
    for cached in (True, False):
        run = simulation(tmp_path / str(cached), method, **own, **{"train.cache_features": cached, "train.participation": 0.5})
        run.start()
        accuracies.append([record["per_client"]["accuracy"] for record in run.rounds()])
        rows.append(run.state.row)
        moved = (run.state.row - run.federation.initial).abs().max()
    assert float(moved) > 1e-2
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-5)
    assert np.abs(np.array(accuracies[0]) - np.array(accuracies[1])).max() < 0.1


def head_alone(space: ParameterSpace, server: ServerState, round: int) -> Payload:
    return Payload(space.unpack(server.row, space.select(["head"])), round)


def test_what_is_neither_sent_nor_kept_is_as_it_was_initially(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method may send parts of the net in some rounds only: no client may then train on what another left behind."""
    results = []
    for again in (False, True):
        run = simulation(tmp_path / str(again), "fedavg")
        monkeypatch.setattr(run.federation.method, "download", partial(head_alone, run.federation.resident.space))
        monkeypatch.setattr(type(run.federation.method), "partial_downloads", True)
        run.start()
        run.run_round()
        if again:  # what another client, or the scoring, may have left
            run.federation.resident.row.normal_(generator=torch.Generator().manual_seed(0))
        run.run_round()
        results.append(run.state.row.clone())
    assert torch.equal(*results)


def test_a_batch_that_batchnorm_cannot_train_on_is_explained(tmp_path: Path) -> None:
    overrides = {
        "model.name": "resnet9_narrow",
        "data.partition.name": "iid",
        "data.limit": None,
        "train.batch_size": 143,
        "train.participation": 0.1,
    }
    run = simulation(tmp_path / "run", "fedavg", **overrides)
    assert run.federation.data.size(run.participants(1)[0]) == 144
    run.start()
    with pytest.raises(UsageError, match="batch of 1, and BatchNorm needs more"):
        run.run_round()
