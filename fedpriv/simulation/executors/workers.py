"""Run the clients of a round, group by group, in several processes.

A worker is a fork of this process: it has the data, the method and the net, and its own executor. Clients keep their private
states and seal their answers there, so a worker returns exactly what would cross the wire. The result does not depend on which
worker ran the client.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait

import torch

from fedpriv.client.store import ClientStore
from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import die_with_parent
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.mail import Mail
from fedpriv.simulation.executors.sequential import Executor, Warn
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.requests import SampleCount
from fedpriv.wire import Sealed
from fedpriv.wire.report import Answer

MOST_DEATHS = 3
"""Workers that may die on one group of clients before the run stops with an error."""

Group = tuple[int, ...]
Make = Callable[[Federation, ClientStore | None, Warn], Executor]


@dataclass(frozen=True)
class Task:
    """What a worker is to do.

    Attributes:
        instruction: of one group of the round's clients.
        test: whether they are tested; otherwise they train.
    """

    instruction: Instruction
    test: bool = False

    @property
    def group(self) -> Group:
        return tuple(self.instruction.clients)


@dataclass(frozen=True)
class TaskResult:
    """The result of a task.

    Attributes:
        warnings: messages for the user.
        sample_count: training samples processed, where clients trained together.
        error: the exception that stopped the task; a traceback as text where it is a bug.
    """

    answers: Sequence[Answer] = ()
    warnings: Sequence[str] = ()
    sample_count: SampleCount = field(default_factory=SampleCount)
    error: BaseException | str | None = None


class Workers(Executor):
    """Spreads a round's groups over processes; the largest clients first, as they take longest.

    Args:
        make: makes the executor that each worker runs.
        number: number of workers.
        warn: called when a worker dies, and when there are more workers than cores.
    """

    def __init__(self, federation: Federation, make: Make, number: int, store: ClientStore | None, warn: Warn) -> None:
        super().__init__(federation, store)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if number > cores:
            warn(f"executor.workers {number}: this machine has {cores} cores, so more workers than that only wait for each other")
        self._make, self._number, self._warn = make, number, warn
        self._here = make(federation, store, warn)
        self._broadcast: Sealed | None = None
        self._workers: list[_Worker] = []

    def welcome(self, broadcast: Sealed) -> None:
        self.close()  # the next workers will know it
        self._broadcast = broadcast

    def groups(self, clients: Sequence[int]) -> list[Group]:
        return self._here.groups(clients)

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        return self._spread(instruction, test=False)

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        return self._spread(instruction, test=True)

    def _spread(self, instruction: Instruction, test: bool) -> Iterator[Answer]:
        waiting = deque(self.groups(instruction.clients))
        deaths: dict[Group, int] = {}
        while len(self._workers) < min(self._number, len(waiting)):
            self._workers.append(self._worker())
        try:
            while waiting or any(worker.task for worker in self._workers):
                for worker in self._workers:
                    if worker.task is None and waiting:
                        worker.begin(Task(instruction.of(waiting.popleft()), test))
                busy = [worker for worker in self._workers if worker.task is not None]
                ready = wait([worker.mail.connection for worker in busy])
                for worker in [worker for worker in busy if worker.mail.connection in ready]:
                    assert worker.task is not None
                    group, result = worker.task.group, worker.end()
                    if result is None:
                        self._workers[self._workers.index(worker)] = self._worker()
                        deaths[group] = deaths.get(group, 0) + 1
                        self._handle_worker_death(worker, group, deaths[group], instruction.round)
                        waiting.appendleft(group)
                    else:
                        yield from self._answers(result)
        finally:
            if any(worker.task for worker in self._workers):  # the round was given up: no result is awaited
                self.close()

    def _worker(self) -> _Worker:
        return _Worker(self._executor)

    def _executor(self, warn: Warn) -> Executor:
        """What a worker runs its clients with."""
        executor = self._make(self.federation, self.store, warn)
        if self._broadcast is not None:
            executor.welcome(self._broadcast)
        return executor

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _answers(self, result: TaskResult) -> Sequence[Answer]:
        if isinstance(result.error, FedprivError):
            raise result.error
        if result.error is not None:
            raise RuntimeError(f"in a worker:\n{result.error}")
        self.sample_count.add(result.sample_count)
        for text in result.warnings:
            self._warn(text)
        return result.answers

    def _handle_worker_death(self, worker: _Worker, group: Group, deaths: int, round: int) -> None:
        clients = ", ".join(map(str, sorted(group)))
        reason = _exit_reason(worker.process.exitcode)
        event = f"worker {worker.process.pid} {reason} while it trained the clients {clients} of round {round}"
        if deaths == MOST_DEATHS:
            raise FedprivError(f"{event}; so did {deaths - 1} before it, so these clients cause it")
        self._warn(f"{event}; they run again")


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, make: Callable[[Warn], Executor]) -> None:
        self.mail, theirs = Mail.pair()
        self.task: Task | None = None
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_worker_main, args=(theirs, make, os.getpid()), daemon=True)
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


def _worker_main(mail: Mail, make: Callable[[Warn], Executor], parent: int) -> None:
    """A worker's main loop; it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with_parent(parent)
    torch.set_num_threads(1)
    warnings: list[str] = []
    executor = make(warnings.append)
    while True:
        try:
            task: Task = mail.receive()
        except EOFError:
            return
        warnings.clear()
        try:
            answers = list((executor.test if task.test else executor.train)(task.instruction))
            result = TaskResult(answers, tuple(warnings), executor.sample_count.take())
        except FedprivError as error:
            result = TaskResult(
                error=error if type(error) is UsageError or type(error) is FedprivError else FedprivError(str(error))
            )
        except Exception:
            result = TaskResult(error=traceback.format_exc())
        mail.send(result)


def _exit_reason(code: int | None) -> str:
    """How a process ended, as a phrase."""
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}"
