"""The clients of a round, group by group, in several processes.

A worker is this process, forked: it has the data, the method and the net, and an executor of its own. What a client uploads is
transformed and sealed where it trained, so what comes back is what would cross the wire, and nothing depends on which worker
it was.
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
from fedpriv.simulation.vectorized.requests import Shown
from fedpriv.wire import Payload, Sealed, Wire, seal, unseal

MOST_DEATHS = 3
"""Workers that may die over one group of clients before the run gives up."""
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
class Done:
    """What came of a task.

    Attributes:
        results: without what clients keep, which is in ``kept`` as bytes; ``None``: they keep nothing.
        diverged: clients without a result.
        spent: (client, sampling rate, steps) of the ledger.
        said: what the user should know.
        shown: to the net, where clients trained together.
        error: what stopped the worker, and whether a user can cause it.
    """

    results: Sequence[TurnResult] = ()
    kept: Sequence[bytes | None] = ()
    diverged: Sequence[int] = ()
    spent: Sequence[tuple[int, float, int]] = ()
    said: Sequence[str] = ()
    shown: Shown = field(default_factory=Shown)
    error: BaseException | str | None = None


class Workers(Executor):
    """Spreads a round's groups over processes; the largest clients first, as they take longest.

    Args:
        make: makes the executor that each worker plays its groups with.
        number: of workers.
        warn: told of a worker that died, and of more workers than cores.
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
                    group, done = worker.task.group, worker.end()
                    if done is None:
                        self._workers[self._workers.index(worker)] = _Worker(self.federation, self._make)
                        deaths[group] = deaths.get(group, 0) + 1
                        self._mourn(worker, group, deaths[group], round)
                        waiting.appendleft(group)
                    else:
                        yield from self._taken_in(done, round)
        finally:
            if any(worker.task for worker in self._workers):  # the round was given up: nobody waits for what they do
                self.close()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _taken_in(self, done: Done, round: int) -> Iterator[TurnResult | ClientDiverged]:
        if isinstance(done.error, FedprivError):
            raise done.error
        if done.error is not None:
            raise RuntimeError(f"in a worker:\n{done.error}")
        self.shown.add(done.shown)
        for text in done.said:
            self._warn(text)
        for client, rate, steps in done.spent:
            if self.spend is not None:
                self.spend(client, rate, steps)
        for client in done.diverged:
            yield ClientDiverged(client, round, self.federation.config.train.lr)
        for result, kept in zip(done.results, done.kept, strict=True):
            if result.upload is not None:
                self.federation.wire.carry("up", result.upload)
            yield replace(result, kept={} if kept is None else unseal(kept).tensors())

    def _mourn(self, worker: _Worker, group: Group, deaths: int, round: int) -> None:
        clients = ", ".join(map(str, sorted(group)))
        who = (
            f"worker {worker.process.pid} {_how(worker.process.exitcode)} while it trained the clients {clients} of round {round}"
        )
        if deaths == MOST_DEATHS:
            raise FedprivError(f"{who}; so did {deaths - 1} before it, so these clients are what kills them")
        self._warn(f"{who}; they run again")


class _Worker:
    """A process, and the mail between it and this one."""

    def __init__(self, federation: Federation, make: Make) -> None:
        self.mail, theirs = Mail.pair()
        self.task: Task | None = None
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_work, args=(theirs, federation, make, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, task: Task) -> None:
        self.task = task
        with suppress(ConnectionError):  # it is dead already, which is found out when its answer is waited for
            self.mail.send(task)

    def end(self) -> Done | None:
        """What came of the task; ``None``: the worker is dead."""
        self.task = None
        try:
            done: Done = self.mail.receive()
            return done
        except (EOFError, ConnectionError):
            self.close()
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.mail.close()


def _work(mail: Mail, federation: Federation, make: Make, parent: int) -> None:
    """What a worker does, until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    torch.set_num_threads(1)
    spent: list[tuple[int, float, int]] = []
    said: list[str] = []
    alone = replace(federation, wire=Wire(federation.wire.transforms))  # who listens to the wire does so in the parent
    executor = make(alone, lambda client, rate, steps: spent.append((client, rate, steps)), said.append)
    while True:
        try:
            task: Task = mail.receive()
        except EOFError:
            return
        spent.clear()
        said.clear()
        try:
            done = replace(_played(executor, task), spent=tuple(spent), said=tuple(said), shown=executor.shown.take())
        except FedprivError as error:
            done = Done(error=error if type(error) is UsageError or type(error) is FedprivError else FedprivError(str(error)))
        except Exception:
            done = Done(error=traceback.format_exc())
        mail.send(done)


def _played(executor: Executor, task: Task) -> Done:
    kept: dict[int, Private | None] = {
        client: None if data is None else unseal(data).tensors() for client, data in task.private.items()
    }
    diverged: list[int] = []
    results, keeps = [], []
    turns = executor.run(task.round, task.group, task.download, kept.__getitem__, lambda error: diverged.append(error.client))
    for result in turns:
        keeps.append(_packed(result.kept or None, task.round))  # now: what a client keeps is valid until the next turn
        results.append(replace(result, kept={}))
    return Done(results, keeps, diverged)


def _packed(private: Mapping[str, Tensor] | None, round: int) -> bytes | None:
    return None if private is None else seal(Payload(private, round)).data


def _how(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}"
