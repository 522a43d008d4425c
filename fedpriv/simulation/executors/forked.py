"""Workers that are forks of this process: they share its data, method and net in memory, and its folder of private states."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait

import torch

from fedpriv.client.store import ClientStore
from fedpriv.processes import die_with_parent, usable_cores
from fedpriv.simulation.executors.in_process import in_process_executor
from fedpriv.simulation.executors.pipe import Pipe
from fedpriv.simulation.executors.sequential import Executor, Warn
from fedpriv.simulation.executors.worker_pool import Task, TaskResult, Worker, WorkerPool, run_task
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Sealed


class ForkedWorkers(WorkerPool):
    """Distributes a round's groups over processes of this machine.

    Args:
        number: number of workers.
        warn: called when a worker dies, and when there are more workers than cores.
    """

    _workers: list[_Fork]  # type: ignore[assignment]

    def __init__(self, federation: Federation, number: int, store: ClientStore | None, warn: Warn) -> None:
        super().__init__(federation, in_process_executor(federation, store, warn), number, store, warn)
        if number > (cores := usable_cores()):
            usable = "1 core" if cores == 1 else f"{cores} cores"
            warn(f"executor.workers {number}: this process may use {usable}, so more workers than that only wait for each other")
        self._broadcast: Sealed | None = None

    def welcome(self, broadcast: Sealed) -> None:
        self.close()  # the next forks have it
        self._broadcast = broadcast

    def _worker(self) -> _Fork:
        return _Fork(self._executor)

    def _ready(self) -> Sequence[Worker]:
        busy = [worker for worker in self._workers if worker.task is not None]
        ready = wait([worker.pipe.connection for worker in busy])
        return [worker for worker in busy if worker.pipe.connection in ready]

    def _executor(self, warn: Warn) -> Executor:
        """The executor of a worker."""
        executor: Executor = in_process_executor(self.federation, self.store, warn)
        if self._broadcast is not None:
            executor.welcome(self._broadcast)
        return executor


class _Fork(Worker):
    """A worker process, and the pipe to it."""

    def __init__(self, make: Callable[[Warn], Executor]) -> None:
        self.pipe, theirs = Pipe.pair()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_worker_main, args=(theirs, make, os.getpid()), daemon=True)
        self.process.start()
        self.name = f"worker {self.process.pid}"
        theirs.close()

    def begin(self, task: Task) -> None:
        self.task = task
        with suppress(ConnectionError):  # it is dead already; end() will notice
            self.pipe.send(task)

    def end(self) -> TaskResult | None:
        self.task = None
        try:
            result: TaskResult = self.pipe.receive()
            return result
        except (EOFError, ConnectionError):
            self.close()
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    @property
    def exit_reason(self) -> str:
        code = self.process.exitcode
        if code is not None and code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with code {code}"


def _worker_main(pipe: Pipe, make: Callable[[Warn], Executor], parent: int) -> None:
    """A worker's main loop; it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with_parent(parent)
    torch.set_num_threads(1)
    warnings: list[str] = []
    executor = make(warnings.append)
    while True:
        try:
            task: Task = pipe.receive()
        except EOFError:
            return
        pipe.send(run_task(task, executor, warnings))
