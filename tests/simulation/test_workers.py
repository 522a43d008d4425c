"""Processes that share a round's clients change nothing but the time."""

from __future__ import annotations

import io
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.config import load_config
from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import TRACKING_THREAD
from fedpriv.simulation import run
from fedpriv.simulation.choice import workers as choice_of_workers
from fedpriv.simulation.choice.costs import PRODUCT_SECONDS, STEP_SECONDS, least_seconds
from fedpriv.simulation.choice.workers import may_hold_locks
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
    assert "this process may use 2 cores" in played.warnings[0]  # type: ignore[attr-defined]


def test_where_there_can_be_none_it_is_said(played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="a worker has one torch thread, and threads is 2; use --workers 1"):
        played(2, False, **{"method.name": "fedavg", "threads": 2})
    monkeypatch.setattr(choice_of_workers.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UsageError, match="cannot fork"):
        played(2, False, **{"method.name": "fedavg"})


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without other threads that may use four cores, and a run that takes long."""
    monkeypatch.setattr(choice_of_workers, "usable_cores", lambda: 4)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    monkeypatch.setattr(choice_of_workers, "free_memory", lambda: math.inf)
    monkeypatch.setattr(choice_of_workers, "WORTH", 1e-6)


@pytest.mark.parametrize("executor", quick_first(["vectorized", "sequential"]))
def test_auto_spreads_a_long_run_and_changes_no_bit(played: Callable[..., Simulation], four_cores: None, executor: str) -> None:
    options = {"method.name": "scaffold", "executor.name": executor, "executor.group_size": 2, "train.rounds": 2}
    alone, spread = (played(workers, **options) for workers in (1, "auto"))
    assert not isinstance(alone.executor, ForkedWorkers) and isinstance(spread.executor, ForkedWorkers)
    assert len(spread.executor._workers) == (4 if executor == "sequential" else 3), "a process for each core that has a group"
    assert torch.equal(alone.state.row, spread.state.row)
    assert all(torch.equal(alone.stored(c)[n], t) for c in range(10) for n, t in (spread.stored(c) or {}).items())  # type: ignore[index]
    assert spread.federation.config.executor.workers == "auto", "a run that goes on elsewhere has as many as suit there"


WHY_ONE = {
    "only one core may be used": {"usable_cores": lambda: 1},
    "the run is short": {"WORTH": 1e6},
    "there is no memory for more": {"free_memory": lambda: 5e8},
}


@pytest.mark.parametrize("why", WHY_ONE)
@pytest.mark.usefixtures("four_cores")
def test_auto_says_why_it_is_one(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    for name, value in WHY_ONE[why].items():
        monkeypatch.setattr(choice_of_workers, name, value)
    choice = build(load_config(None, {**SMALL, "method.name": "fedavg"})).choice
    assert choice is not None and choice.workers == 1 and str(choice).endswith(f"; in one process: {why}")


@pytest.mark.usefixtures("four_cores")
def test_auto_is_one_where_a_process_may_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(**overrides: Any) -> int | str:
        choice = build(load_config(None, {**SMALL, "method.name": "fedavg", **overrides})).choice
        assert choice is not None
        return choice.workers

    assert workers(**{"executor.name": "sequential"}) == 4 and workers(**{"executor.group_size": 3}) == 2
    assert workers(threads=2) == 1, "a worker has one torch thread"
    assert workers(**{"train.participation": 0.1}) == 1, "a round has one client"
    with monkeypatch.context() as notebook:
        notebook.setattr(threading, "enumerate", lambda: [threading.current_thread(), threading.Thread(name="another")])
        assert workers() == 1, "a fork would inherit what another thread has locked"
    monkeypatch.setattr(choice_of_workers.multiprocessing.current_process(), "_config", {"daemon": True})
    assert workers() == 1, "Python refuses children of such a process"


def test_threads_of_its_own_do_not_keep_a_run_in_one_process() -> None:
    """Those of the progress bar on a terminal, and of the records of an earlier run."""
    before = set(threading.enumerate())
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)):
        new = set(threading.enumerate()) - before
        assert new and not any(map(may_hold_locks, new))
    assert not may_hold_locks(threading.Thread(name=TRACKING_THREAD)) and not may_hold_locks(threading.current_thread())
    assert may_hold_locks(threading.Thread())
    with tqdm(total=1, file=io.StringIO()) as bar:  # as the library that reads tables
        assert type(bar).monitor is not None and not may_hold_locks(bar.monitor)


def test_the_estimate_grows_with_the_work() -> None:
    def seconds(model: str, **overrides: Any) -> float:
        federation = build(load_config(None, {**SMALL, "method.name": "fedavg", "model.name": model, **overrides}))
        samples = federation.places.train(0).inputs
        return least_seconds(federation.config, federation.resident.net, samples, [100, 50], federation.method.phases(round=1))

    short = seconds("mlp")
    net = build(load_config(None, {**SMALL, "method.name": "fedavg"})).resident.net
    weights = sum(parameter.numel() for name, parameter in net.named_parameters() if name.endswith("weight"))
    steps, samples = 3 * (10 + 5), 3 * (100 + 50)  # three rounds of two clients
    assert short == pytest.approx(steps * STEP_SECONDS + samples * weights * PRODUCT_SECONDS)
    assert seconds("mlp", **{"train.rounds": 6}) == pytest.approx(2 * short)
    assert seconds("resnet9_narrow") > 2 * short, "a convolution multiplies each weight many times"


def test_cpu_seconds_of_a_run_include_those_of_its_workers(
    played: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ModelLocalUpdate.train

    def train(self: ModelLocalUpdate, *arguments: Any) -> None:
        began = time.process_time()
        while time.process_time() - began < 0.02:
            pass
        original(self, *arguments)

    monkeypatch.setattr(ModelLocalUpdate, "train", train)
    simulation = played(2, **{"method.name": "fedavg", "train.rounds": 1})
    assert simulation.progress.cpu_seconds > 6 * 0.02, "six clients"


def test_a_run_with_a_profile_stays_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four_cores: None) -> None:
    def never(*given: Any) -> None:
        raise AssertionError("a worker's categories would be lost")

    monkeypatch.setattr(executors, "ForkedWorkers", never)
    asked = load_config(None, {**SMALL, "method.name": "fedavg", "train.rounds": 1, "run_dir": str(tmp_path / "run")})
    outcome = run.start(asked, tmp_path, *SILENT, profiled=True)
    assert outcome.profile is not None
