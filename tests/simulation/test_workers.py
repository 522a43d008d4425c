"""Processes that share a round's clients change nothing but the time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.config import load_config
from fedpriv.errors import FedprivError, UsageError
from fedpriv.simulation import executor_choice, run
from fedpriv.simulation.executors import build as executors
from fedpriv.simulation.executors.forked import ForkedWorkers
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder
from tests.marks import quick_first
from tests.simulation.small import QUICK, SILENT, computed, config, play, rounds_recorded

SMALL = {
    "data.name": "digits",
    "data.limit": 200,
    "data.clients": 10,
    "data.partition.name": "dirichlet",
    "data.partition.alpha": 0.3,
    "model.name": "mlp",
    "model.projection": 8,
    "train.participation": 0.6,
    "train.rounds": 3,
    "train.local_epochs": 1,
    "train.batch_size": 10,
    "tracking.uri": "none",
}


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Callable[..., Simulation]]:
    simulations: list[Simulation] = []
    warnings: list[str] = []

    def make(number: int, play: bool = True, **overrides: Any) -> Simulation:
        quick = QUICK.get(overrides["method.name"], {})
        federation = build(load_config(None, {**SMALL, "executor.workers": number, **quick, **overrides}))
        folder = RunFolder.create(federation.config, tmp_path / f"runs{len(simulations)}")
        simulation = Simulation(federation, folder, warnings.append)
        simulations.append(simulation)
        simulation.start()
        if play:
            for _ in simulation.rounds():
                pass
        return simulation

    make.warnings = warnings  # type: ignore[attr-defined]
    yield make
    for simulation in simulations:
        simulation.executor.close()


def sent(simulation: Simulation) -> list[str]:
    """What crosses the wire from now on."""
    digests: list[str] = []
    simulation.taps.append(lambda way, sealed: digests.append(f"{way} {sealed.client} {sealed.digest}"))
    return digests


@pytest.mark.parametrize(
    ("method", "executor"),
    quick_first([("scaffold", "sequential"), ("scaffold", "vectorized"), ("mpfedcon", "sequential"), ("moon", "vectorized")]),
)
def test_the_numbers_are_those_of_one_process(played: Callable[..., Simulation], method: str, executor: str) -> None:
    results = []
    for number in (1, 3):
        options = {"method.name": method, "executor.name": executor, "executor.group_size": 2}
        transforms = [{"name": "gaussian", "variance": 1e-6}]
        simulation = played(number, False, **options, **{"wire.transforms": transforms})
        assert isinstance(simulation.executor, ForkedWorkers) == (number > 1)
        digests = sent(simulation)
        records = list(simulation.rounds())
        kept = {c: {name: t.clone() for name, t in (simulation.stored(c) or {}).items()} for c in range(10)}
        metrics = [{k: v for k, v in record["metrics"].items() if k != "seconds"} for record in records]
        results.append((simulation.state.row, sorted(digests), kept, metrics))
    for row, digests, kept, metrics in results[1:]:
        assert torch.equal(row, results[0][0])
        assert digests == results[0][1] and metrics == results[0][3]
        assert all(torch.equal(kept[c][name], tensor) for c, own in results[0][2].items() for name, tensor in own.items())


@pytest.mark.slow
def test_a_run_goes_on_with_another_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    play(whole, "mpfedcon")

    def breaks(record: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run.start(config("mpfedcon", run_dir=str(cut)), tmp_path, SILENT[0], breaks, SILENT[2])
    assert rounds_recorded(cut)[-1] < 3
    forked: list[ForkedWorkers] = []
    monkeypatch.setattr(executors, "ForkedWorkers", lambda *given: forked.append(ForkedWorkers(*given)) or forked[-1])
    run.resume(cut, *SILENT, executor={"workers": 2})
    assert forked and computed(whole) == computed(cut)


@pytest.mark.slow
def test_the_ledger_hears_of_what_is_spent_elsewhere(played: Callable[..., Simulation]) -> None:
    options = {"method.name": "fedavg", "model.name": "mlp2", "privacy.level": "sample", "privacy.noise": 4.0, "train.rounds": 2}
    epsilons = [played(number, **options).ledger.epsilon for number in (1, 2)]
    assert epsilons[0] == epsilons[1] > 0


def _dying(monkeypatch: pytest.MonkeyPatch, when: Callable[[ModelLocalUpdate], bool]) -> None:
    """A client's training kills its process."""
    original, parent = ModelLocalUpdate.train, os.getpid()

    def train(self: ModelLocalUpdate, *arguments: Any) -> None:
        if os.getpid() != parent and when(self):
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, *arguments)

    monkeypatch.setattr(ModelLocalUpdate, "train", train)


def test_a_worker_that_dies_is_named_and_its_clients_run_again(
    played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reference = played(1, **{"method.name": "fedavg"}).state.row
    marker = tmp_path / "died"

    def once(update: ModelLocalUpdate) -> bool:
        if update.round != 2:
            return False
        try:
            marker.touch(exist_ok=False)  # the other worker may be here too
        except FileExistsError:
            return False
        return True

    _dying(monkeypatch, once)
    simulation = played(2, **{"method.name": "fedavg"})
    warnings: list[str] = played.warnings  # type: ignore[attr-defined]
    assert marker.exists()
    assert torch.equal(simulation.state.row, reference)
    assert (
        len(warnings) == 1 and "was killed by SIGKILL while it trained the clients" in warnings[0] and "of round 2" in warnings[0]
    )


@pytest.mark.slow
def test_clients_that_kill_every_worker_end_the_run(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    _dying(monkeypatch, lambda update: True)
    simulation = played(2, False, **{"method.name": "fedavg"})
    with pytest.raises(FedprivError, match="these clients cause it"):
        simulation.run_round()
    assert isinstance(simulation.executor, ForkedWorkers) and not simulation.executor._workers


def test_what_goes_wrong_in_a_worker_is_said_here(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: ModelLocalUpdate, *arguments: Any) -> None:
        raise UsageError("a client's trouble")

    monkeypatch.setattr(ModelLocalUpdate, "train", wrong)
    with pytest.raises(UsageError, match="a client's trouble"):
        played(2, **{"method.name": "fedavg"})


@pytest.mark.slow
def test_a_client_that_diverges_in_a_worker(played: Callable[..., Simulation]) -> None:
    simulation = played(2, **{"method.name": "fedavg", "train.lr": 1e30, "train.on_nan": "drop", "train.rounds": 1})
    assert simulation.progress.record["metrics"]["dropped"] == 6
    with pytest.raises(FedprivError, match="diverged in round 1"):
        played(2, **{"method.name": "fedavg", "train.lr": 1e30})


def test_more_workers_than_cores_are_warned_of(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    played(3, False, **{"method.name": "fedavg"})
    assert "this machine has 2 cores" in played.warnings[0]  # type: ignore[attr-defined]


def test_where_there_can_be_none_it_is_said(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="a worker has one torch thread, and threads is 2; use --workers 1"):
        played(2, False, **{"method.name": "fedavg", "threads": 2})
    monkeypatch.setattr(executor_choice.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UsageError, match="cannot fork"):
        played(2, False, **{"method.name": "fedavg"})
