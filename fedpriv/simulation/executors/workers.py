"""Run the clients of a round, group by group, in several processes.

A worker is a fork of this process: it has the data, the method and the net, and its own executor. A client's upload is
transformed and sealed in the worker, so the worker returns exactly what would cross the wire. The result does not depend on
which worker ran the client.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

import torch
from torch import Tensor

from fedpriv.client.turn import ClientDiverged
from fedpriv.errors import FedprivError, UsageError
from fedpriv.methods.base import Private
from fedpriv.simulation.executors.mail import Mail
from fedpriv.simulation.executors.sequential import Executor, Orders, Spend, TurnResult, Warn
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.requests import SampleCount
from fedpriv.wire import Payload, Sealed, Wire, seal, unseal

MOST_DEATHS = 3
"""Workers that may die on one group of clients before the run stops with an error."""
_PR_SET_PDEATHSIG = 1

Group = tuple[int, ...]
Make = Callable[[Federation, Spend, Warn], Executor]


@dataclass(frozen=True)
class Task:
    """A group's turns.

    Attributes:
        private: what each client kept, as bytes; ``None``: it never took part.
    """

    round: int
    group: Group
    download: Sealed | None
    private: Mapping[int, bytes | None]


@dataclass(frozen=True)
class TaskResult:
    """The result of a task.

    Attributes:
        results: without what clients keep, which is in ``kept`` as bytes; ``None``: they keep nothing.
        diverged: clients without a result.
        spent: (client, sampling rate, steps) of the ledger.
        said: messages for the user.
        sample_count: training samples processed, where clients trained together.
        error: the exception that stopped the task; a traceback as text where it is a bug.
    """

    results: Sequence[TurnResult] = ()
    kept: Sequence[bytes | None] = ()
    diverged: Sequence[int] = ()
    spent: Sequence[tuple[int, float, int]] = ()
    said: Sequence[str] = ()
    sample_count: SampleCount = field(default_factory=SampleCount)
    error: BaseException | str | None = None


class Workers(Executor):
    """Spreads a round's groups over processes; the largest clients first, as they take longest.

    Args:
        make: makes the executor that each worker runs.
        number: number of workers.
        warn: called when a worker dies, and when there are more workers than cores.
    """

    def __init__(self, federation: Federation, make: Make, number: int, spend: Spend, warn: Warn) -> None:
        super().__init__(federation, spend)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if number > cores:
            warn(f"executor.workers {number}: this machine has {cores} cores, so more workers than that only wait for each other")
        self._make, self._number, self._warn = make, number, warn
        self._here = make(federation, spend, warn)
        self._workers: list[_Worker] = []

    def groups(self, clients: Sequence[int]) -> list[Group]:
        return self._here.groups(clients)

    def _results(self, orders: Orders) -> Iterator[TurnResult | ClientDiverged]:
        round, private = orders.round, orders.private
        waiting = deque(self.groups(orders.clients))
        deaths: dict[Group, int] = {}
        while len(self._workers) < min(self._number, len(waiting)):
            self._workers.append(_Worker(self.federation, self._make))
        try:
            while waiting or any(worker.task for worker in self._workers):
                for worker in self._workers:
                    if worker.task is None and waiting:
                        group = waiting.popleft()
                        kept = {client: _packed(private(client), round) for client in group}
                        worker.begin(Task(round, group, orders.download, kept))
                busy = [worker for worker in self._workers if worker.task is not None]
                ready = wait([worker.mail.connection for worker in busy])
                for worker in [worker for worker in busy if worker.mail.connection in ready]:
                    assert worker.task is not None
                    group, result = worker.task.group, worker.end()
                    if result is None:
                        self._workers[self._workers.index(worker)] = _Worker(self.federation, self._make)
                        deaths[group] = deaths.get(group, 0) + 1
                        self._handle_worker_death(worker, group, deaths[group], round)
                        waiting.appendleft(group)
                    else:
                        yield from self._results_of(result, round)
        finally:
            if any(worker.task for worker in self._workers):  # the round was given up: no result is awaited
                self.close()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _results_of(self, result: TaskResult, round: int) -> Iterator[TurnResult | ClientDiverged]:
        if isinstance(result.error, FedprivError):
            raise result.error
        if result.error is not None:
            raise RuntimeError(f"in a worker:\n{result.error}")
        self.sample_count.add(result.sample_count)
        for text in result.said:
            self._warn(text)
        for client, rate, steps in result.spent:
            if self.spend is not None:
                self.spend(client, rate, steps)
        for client in result.diverged:
            yield ClientDiverged(client, round, self.federation.config.train.lr)
        for turn, kept in zip(result.results, result.kept, strict=True):
            if turn.upload is not None:
                self.federation.wire.carry("up", turn.upload)
            yield replace(turn, kept={} if kept is None else unseal(kept).tensors())

    def _handle_worker_death(self, worker: _Worker, group: Group, deaths: int, round: int) -> None:
        clients = ", ".join(map(str, sorted(group)))
        reason = _exit_reason(worker.process.exitcode)
        event = f"worker {worker.process.pid} {reason} while it trained the clients {clients} of round {round}"
        if deaths == MOST_DEATHS:
            raise FedprivError(f"{event}; so did {deaths - 1} before it, so these clients cause it")
        self._warn(f"{event}; they run again")


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, federation: Federation, make: Make) -> None:
        self.mail, theirs = Mail.pair()
        self.task: Task | None = None
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_worker_main, args=(theirs, federation, make, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, task: Task) -> None:
        self.task = task
        with suppress(ConnectionError):  # it is dead already; end() will notice
            self.mail.send(task)

    def end(self) -> TaskResult | None:
        """The result of the task; ``None``: the worker is dead."""
        self.task = None
        try:
            result: TaskResult = self.mail.receive()
            return result
        except (EOFError, ConnectionError):
            self.close()
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.mail.close()


def _worker_main(mail: Mail, federation: Federation, make: Make, parent: int) -> None:
    """A worker's main loop; it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    torch.set_num_threads(1)
    spent: list[tuple[int, float, int]] = []
    said: list[str] = []
    alone = replace(federation, wire=Wire(federation.wire.transforms))  # listeners on the wire belong to the parent
    executor = make(alone, lambda client, rate, steps: spent.append((client, rate, steps)), said.append)
    while True:
        try:
            task: Task = mail.receive()
        except EOFError:
            return
        spent.clear()
        said.clear()
        try:
            result = replace(
                _run_task(executor, task), spent=tuple(spent), said=tuple(said), sample_count=executor.sample_count.take()
            )
        except FedprivError as error:
            result = TaskResult(
                error=error if type(error) is UsageError or type(error) is FedprivError else FedprivError(str(error))
            )
        except Exception:
            result = TaskResult(error=traceback.format_exc())
        mail.send(result)


def _run_task(executor: Executor, task: Task) -> TaskResult:
    kept: dict[int, Private | None] = {
        client: None if data is None else unseal(data).tensors() for client, data in task.private.items()
    }
    diverged: list[int] = []
    results, keeps = [], []
    turns = executor.run(task.round, task.group, task.download, kept.__getitem__, lambda error: diverged.append(error.client))
    for result in turns:
        keeps.append(_packed(result.kept or None, task.round))  # now: what a client keeps is valid until the next turn
        results.append(replace(result, kept={}))
    return TaskResult(results, keeps, diverged)


def _packed(private: Mapping[str, Tensor] | None, round: int) -> bytes | None:
    return None if private is None else seal(Payload(private, round)).data


def _exit_reason(code: int | None) -> str:
    """How a process ended, as a phrase."""
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}"
