"""Workers on a Ray cluster: processes on any of its machines, each with a federation that it builds from the run's config.

They share no disk with the server. A client's private state is sent with its task and sent back, so any worker can run it next,
and the run folder has all states, as with other executors.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedpriv.client.store import ClientStore
from fedpriv.config import ExecutorConfig, RunConfig
from fedpriv.errors import FedprivError, UsageError
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.in_process import in_process_executor
from fedpriv.simulation.executors.sequential import Executor, Warn
from fedpriv.simulation.executors.worker_pool import MAX_DEATHS, Task, TaskResult, Worker, WorkerPool, run_task
from fedpriv.simulation.reopening import hashes
from fedpriv.simulation.setup import Federation, build
from fedpriv.wire import Sealed
from fedpriv.wire.report import Answer

PATIENCE = 300.0
"""Seconds to wait for a worker to start before the run stops."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

Files = Mapping[str, bytes]
"""Files of a client's store: name -> content."""


class RayWorkers(WorkerPool):
    """Distributes a round's groups over actors of a Ray cluster.

    A worker that dies is replaced, anywhere in the cluster, and its group runs again. A machine that joins the cluster is used
    from the next round on.

    Args:
        settings: with the ``ray_address`` of the cluster (``None``: a new one on this machine, which ends with this process), and
            the number ``ray_workers`` (``None``: one for each core of the cluster).
        warn: called when a worker dies.

    Raises:
        UsageError: as :func:`connected`.
    """

    _workers: list[_RemoteWorker]  # type: ignore[assignment]

    def __init__(self, federation: Federation, settings: ExecutorConfig, store: ClientStore | None, warn: Warn) -> None:
        self._ray = connected(settings.ray_address)
        super().__init__(
            federation, in_process_executor(federation, store, warn), settings.ray_workers or self._cores(), store, warn
        )
        self._fixed = settings.ray_workers is not None
        self._actor = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        self._broadcast: Any = None
        self._sent: tuple[Sealed, Any] | None = None
        self._failed_starts = 0

    def welcome(self, broadcast: Sealed) -> None:
        super().welcome(broadcast)
        self._broadcast = self._ray.put(broadcast)
        for worker in self._workers:
            worker.actor.welcome.remote(self._broadcast)

    def close(self) -> None:
        super().close()
        self._sent = None

    def _distribute(self, instruction: Instruction, test: bool) -> Iterator[Answer]:
        if not self._fixed:
            self._number = self._cores()
        return super()._distribute(instruction, test)

    def _cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _why_none(self) -> str:
        """A line on what may keep workers from starting."""
        python = self._ray.get_runtime_context().runtime_env.get("py_executable")
        if python is not None:  # the user's process has started Ray
            return (
                f"Ray starts them by {python!r}, as ray.init was told or found; ray.init(runtime_env=...) or `uv run` made it so"
            )
        cores = self._ray.cluster_resources().get("CPU", 0)
        return f"the Ray cluster has {cores:g} cores; `ray status` shows who uses them"

    def _worker(self) -> _RemoteWorker:
        actor = self._actor.remote(self.federation.config, hashes(self.federation), self._broadcast)
        return _RemoteWorker(self._ray, actor, self._message, self.store)

    def _message(self, sealed: Sealed | None) -> Any:
        """A reference to the download in the cluster's memory, so that it is copied to each machine only once."""
        if sealed is None:
            return None
        if self._sent is None or self._sent[0] is not sealed:
            self._sent = sealed, self._ray.put(sealed)
        return self._sent[1]

    def _ready(self) -> Sequence[Worker]:
        awaited = {worker.awaited: worker for worker in self._workers if worker.awaited is not None}
        done, _ = self._ray.wait(list(awaited), num_returns=1, timeout=PATIENCE)
        if not done and not any(worker.task for worker in self._workers):
            raise FedprivError(f"no worker has started in {PATIENCE:g} s: {self._why_none()}")
        ready: list[Worker] = []
        for worker in (awaited[reference] for reference in done):
            if worker.started:
                ready.append(worker)
            elif not worker.has_started():
                self._failed_starts += 1
                worker.close()
                self._workers[self._workers.index(worker)] = self._worker()
                if self._failed_starts == MAX_DEATHS:
                    raise FedprivError(f"{MAX_DEATHS} workers died while they started, the last: {worker.exit_reason}")
                self._warn(f"{worker.name} {worker.exit_reason} while it started; another one starts")
        return ready


class _RemoteWorker(Worker):
    """A worker that is a Ray actor.

    Attributes:
        awaited: the reference to its start or its result; ``None``: it waits for a task.
    """

    started = False

    def __init__(self, ray: Any, actor: Any, message: Any, store: ClientStore | None) -> None:
        self.actor, self.name = actor, "a worker of the Ray cluster"
        self._ray, self._message, self._store = ray, message, store
        self._why = "ended"
        self.awaited = actor.start.remote()

    def has_started(self) -> bool:
        """Whether it has started; ``False``: it is dead.

        Raises:
            UsageError: it cannot build the federation, or has other data.
        """
        if (answer := self._awaited_value()) is None:
            return False
        self.name, error = answer
        if error is not None:
            raise UsageError(f"{self.name}: {error}")
        self.awaited, self.started = None, True
        return True

    def begin(self, task: Task) -> None:
        self.task, instruction = task, task.instruction
        states = {}
        if self._store is not None:
            states = {client: self._store.export(client, instruction.last.get(client)) for client in instruction.clients}
        bare = replace(task, instruction=replace(instruction, message=None))
        self.awaited = self.actor.play.remote(bare, self._message(instruction.message), states)

    def end(self) -> TaskResult | None:
        task, self.task = self.task, None
        assert task is not None
        if (answer := self._awaited_value()) is None:
            return None
        (result, states), self.awaited = answer, None
        if self._store is not None:
            for files in states.values():
                self._store.take(files)
        assert isinstance(result, TaskResult)
        return result

    def close(self) -> None:
        with suppress(Exception):  # it is dead, or the cluster is gone
            self._ray.kill(self.actor)

    @property
    def exit_reason(self) -> str:
        return self._why

    def _awaited_value(self) -> Any:
        """The awaited value; ``None``: the worker is dead."""
        try:
            return self._ray.get(self.awaited)
        except self._ray.exceptions.RayTaskError:  # a bug, not a dead worker
            raise
        except self._ray.exceptions.RayError as error:
            self._why = f"ended ({type(error).__name__})"
            self.close()
            return None


class _Actor:
    """A worker, on its machine. It keeps its clients' private states in a temporary folder while they train."""

    def __init__(self, config: RunConfig, data: Mapping[str, str], broadcast: Sealed | None) -> None:
        self._config, self._data, self._broadcast = config, data, broadcast
        self._warnings: list[str] = []

    def start(self) -> tuple[str, str | None]:
        """Build the federation; returns the worker's name, and a line on what is wrong, if anything is."""
        name = f"the Ray worker {os.getpid()} on {socket.gethostname()}"
        torch.set_num_threads(1)
        try:
            federation = build(self._config)
        except FedprivError as error:
            return name, str(error)
        if hashes(federation) != self._data:
            return name, "it has other data than the process that started the run"
        self._folder = TemporaryDirectory(prefix="fedpriv-")
        self._store = ClientStore(Path(self._folder.name), memory=0)
        self._executor: Executor = in_process_executor(federation, self._store, self._warnings.append)
        if self._broadcast is not None:
            self._executor.welcome(self._broadcast)
        return name, None

    def welcome(self, broadcast: Sealed) -> None:
        self._executor.welcome(broadcast)

    def play(self, task: Task, message: Sealed | None, states: Mapping[int, Files]) -> tuple[TaskResult, Mapping[int, Files]]:
        """Run a task; returns its result, and the files of its clients' private states after it."""
        for files in states.values():
            self._store.take(files)
        task = replace(task, instruction=replace(task.instruction, message=message))
        result = run_task(task, self._executor, self._warnings)
        kept = {client: self._store.export(client, task.instruction.round) for client in task.instruction.clients}
        self._store.clear()
        return result, kept


def connected(address: str | None) -> Any:
    """The module ``ray``, connected to a cluster; only the first call connects.

    Workers run the Python with which their machine's Ray was started, and nothing is copied to them. If ``uv run`` started this
    process, Ray would by default copy the whole working folder, with runs and data, and start the workers by uv in the copy.

    Raises:
        UsageError: the cluster does not answer, or has another version of Ray.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in _QUIET.items()})
    import ray
    from ray._private import ray_constants

    if ray.is_initialized():
        return ray
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False  # the variable of that name has no effect once Ray is imported
    if address is not None:
        check_answers(address)
    local: dict[str, Any] = {} if address else {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **local)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; if it was started where a Ray token is, set RAY_AUTH_MODE=token"
        if isinstance(error, ValueError) and "address" in str(error):
            hint = "; expected HOST:PORT"
        raise UsageError(f"the Ray cluster {address}: {' '.join(str(error).split())[:200]}{hint}") from None
    return ray


def check_answers(address: str) -> None:
    """Raise :class:`UsageError` if nothing listens at ``HOST:PORT``; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in host:
        return  # an address of another form, which Ray may know
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster answers at {address}: {getattr(error, 'strerror', None) or error}") from None
