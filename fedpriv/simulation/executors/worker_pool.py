"""Executors with several workers, which run groups of a round's clients in parallel.

Each worker has the data, the method, the net and an executor of its own. It returns the clients' sealed answers, which do not
depend on the worker that ran the client.
"""

from __future__ import annotations

import time
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

MAX_DEATHS = 3
"""Workers that may die on the same group of clients before the run stops with an error."""

Group = tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """A task for a worker.

    Attributes:
        instruction: for one group of the round's clients.
        test: whether the clients are tested; otherwise they train.
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
        sample_count: training samples processed, if clients trained together.
        cpu_seconds: of the worker, for the task.
        error: the exception that stopped the task; of a bug, a line that names it, and its traceback.
    """

    answers: Sequence[Answer] = ()
    warnings: Sequence[str] = ()
    sample_count: SampleCount = field(default_factory=SampleCount)
    cpu_seconds: float = 0.0
    error: BaseException | str | None = None


def run_task(task: Task, executor: Executor, warnings: list[str]) -> TaskResult:
    """Run a task; an exception becomes part of its result.

    Args:
        warnings: the list to which the executor's warnings are appended.
    """
    warnings.clear()
    began = time.process_time()
    try:
        answers = list((executor.test if task.test else executor.train)(task.instruction))
        return TaskResult(answers, tuple(warnings), executor.sample_count.take(), time.process_time() - began)
    except FedprivError as error:
        return TaskResult(error=error if type(error) is UsageError or type(error) is FedprivError else FedprivError(str(error)))
    except Exception as error:
        where = f" (in {line})" if (line := line_of_plugin(error)) else ""
        return TaskResult(error=f"{in_a_line(error)}{where}\n{traceback.format_exc()}")


class Worker(ABC):
    """A worker, as the server's process sees it.

    Attributes:
        name: for messages, such as ``worker 4711``.
        task: its present task; ``None``: it has none.
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
        """Wait for the result of the task; ``None``: the worker is dead."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    @property
    @abstractmethod
    def exit_reason(self) -> str:
        """How it ended, as a phrase."""


class WorkerPool(Executor):
    """Distributes a round's groups over workers; the largest clients first, as they take longest.

    Args:
        here: an executor like those of the workers, which forms the groups.
        number: number of workers.
        warn: called when a worker dies.
    """

    def __init__(self, federation: Federation, here: Executor, number: int, store: ClientStore | None, warn: Warn) -> None:
        super().__init__(federation, store)
        self._here, self._number, self._warn = here, number, warn
        self._workers: list[Worker] = []
        self._cpu_seconds = 0.0

    def cpu_seconds(self) -> float:
        taken, self._cpu_seconds = self._cpu_seconds, 0.0
        return taken

    def groups(self, clients: Sequence[int]) -> list[Group]:
        return self._here.groups(clients)

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        return self._distribute(instruction, test=False)

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        return self._distribute(instruction, test=True)

    @abstractmethod
    def _worker(self) -> Worker:
        """A new worker."""

    @abstractmethod
    def _ready(self) -> Sequence[Worker]:
        """Wait until a worker has a result, has started or has died; return all such workers."""

    def _distribute(self, instruction: Instruction, test: bool) -> Iterator[Answer]:
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
            if any(worker.task for worker in self._workers):  # the round was given up
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
        self._cpu_seconds += result.cpu_seconds
        for text in result.warnings:
            self._warn(text)
        return result.answers

    def _handle_worker_death(self, worker: Worker, group: Group, deaths: int, round: int) -> None:
        clients = ", ".join(map(str, sorted(group)))
        event = f"{worker.name} {worker.exit_reason} while it trained the clients {clients} of round {round}"
        if deaths == MAX_DEATHS:
            raise FedprivError(f"{event}; so did {deaths - 1} before it, so these clients cause it")
        self._warn(f"{event}; they run again")
