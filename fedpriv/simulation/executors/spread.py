"""Run the clients of a round, group by group, on several workers: each has the data, the method, the net and its own executor.

Clients seal their answers where they run, so a worker returns exactly what would cross the wire. The result does not depend on
which worker ran the client.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fedpriv.client.store import ClientStore
from fedpriv.errors import FedprivError, UsageError, in_a_line
from fedpriv.plugins import line_of_plugin
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.sequential import Executor, Warn
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.requests import SampleCount
from fedpriv.wire.report import Answer

MOST_DEATHS = 3
"""Workers that may die on one group of clients before the run stops with an error."""

Group = tuple[int, ...]


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
        error: the exception that stopped the task; where it is a bug, a line that names it, and its traceback.
    """

    answers: Sequence[Answer] = ()
    warnings: Sequence[str] = ()
    sample_count: SampleCount = field(default_factory=SampleCount)
    error: BaseException | str | None = None


def result_of(task: Task, executor: Executor, warnings: list[str]) -> TaskResult:
    """Do a task; whatever it raises becomes its result.

    Args:
        warnings: to which the executor appends.
    """
    warnings.clear()
    try:
        answers = list((executor.test if task.test else executor.train)(task.instruction))
        return TaskResult(answers, tuple(warnings), executor.sample_count.take())
    except FedprivError as error:
        return TaskResult(error=error if type(error) is UsageError or type(error) is FedprivError else FedprivError(str(error)))
    except Exception as error:
        where = f" (in {line})" if (line := line_of_plugin(error)) else ""
        return TaskResult(error=f"{in_a_line(error)}{where}\n{traceback.format_exc()}")


class Worker(ABC):
    """One worker, as the process of the server sees it.

    Attributes:
        name: for messages, such as ``worker 4711``.
        task: what it is doing; ``None``: nothing.
        started: whether it can be given a task.
    """

    name: str
    task: Task | None = None
    started = True

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Give it a task."""

    @abstractmethod
    def end(self) -> TaskResult | None:
        """The result of the task, once it is there; ``None``: the worker is dead."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    @property
    @abstractmethod
    def exit_reason(self) -> str:
        """How it ended, as a phrase."""


class Spread(Executor):
    """Spreads a round's groups over workers; the largest clients first, as they take longest.

    Args:
        here: the executor that each worker runs, for the groups that it makes.
        number: number of workers.
        warn: called when a worker dies.
    """

    def __init__(self, federation: Federation, here: Executor, number: int, store: ClientStore | None, warn: Warn) -> None:
        super().__init__(federation, store)
        self._here, self._number, self._warn = here, number, warn
        self._workers: list[Worker] = []

    def groups(self, clients: Sequence[int]) -> list[Group]:
        return self._here.groups(clients)

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        return self._spread(instruction, test=False)

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        return self._spread(instruction, test=True)

    @abstractmethod
    def _worker(self) -> Worker:
        """A new worker."""

    @abstractmethod
    def _ready(self) -> Sequence[Worker]:
        """Wait until there are workers with a result, or that have started, or have died; return these."""

    def _spread(self, instruction: Instruction, test: bool) -> Iterator[Answer]:
        waiting = deque(self.groups(instruction.clients))
        deaths: dict[Group, int] = {}
        while len(self._workers) < min(self._number, len(waiting)):
            self._workers.append(self._worker())
        try:
            while waiting or any(worker.task for worker in self._workers):
                for worker in self._workers:
                    if worker.started and worker.task is None and waiting:
                        worker.begin(Task(instruction.of(waiting.popleft()), test))
                for worker in self._ready():
                    if worker.task is None:
                        continue
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

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _answers(self, result: TaskResult) -> Sequence[Answer]:
        if isinstance(result.error, FedprivError):
            raise result.error
        if result.error is not None:
            raise RuntimeError(f"in a worker process: {result.error}")
        self.sample_count.add(result.sample_count)
        for text in result.warnings:
            self._warn(text)
        return result.answers

    def _handle_worker_death(self, worker: Worker, group: Group, deaths: int, round: int) -> None:
        clients = ", ".join(map(str, sorted(group)))
        event = f"{worker.name} {worker.exit_reason} while it trained the clients {clients} of round {round}"
        if deaths == MOST_DEATHS:
            raise FedprivError(f"{event}; so did {deaths - 1} before it, so these clients cause it")
        self._warn(f"{event}; they run again")
