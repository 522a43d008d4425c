"""Processes that end when their parent ends, function calls in forked processes, and the cores and the memory for them."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.errors import FedprivError, UsageError

T = TypeVar("T")
CORES = "FEDPRIV_CORES"
"""Environment variable: how many cores a process may use at most. Each job of a sweep is given its share by it."""
TRACKING_THREAD = "fedpriv-tracking"
"""Name of threads that pass a run's records on, and hold no lock that a forked process needs."""
_PR_SET_PDEATHSIG = 1
_PROC, _CONTROL_GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """How many cores this process may use: by its affinity, the quotas of its control groups (of a container, a batch job), and
    :data:`CORES`.

    Raises:
        UsageError: the variable is not a number of cores.
    """
    limits: list[float] = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if (share := os.environ.get(CORES)) is not None:
        if not (share.isascii() and share.isdigit() and int(share[:6]) >= 1):
            raise UsageError(f"{CORES}={share!r} in the environment: it must be a number of cores, 1 or more")
        limits.append(int(share))
    for group in _control_groups("cpu"):
        quota = _numbers(group / "cpu.max") or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0] > 0:
            limits.append(quota[0] / quota[1])
    return max(1, math.floor(min(limits)))


def free_memory() -> float:
    """Bytes that this process can allocate without swapping: of the machine, and of its control groups. Infinite: unknown."""
    limits = [math.inf]
    with suppress(OSError):
        facts = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines())
        limits += [1024 * float(facts["MemAvailable"].split()[0])] if "MemAvailable" in facts else []
    for group in _control_groups("memory"):
        most = _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")
        used = _numbers(group / "memory.current") or _numbers(group / "memory.usage_in_bytes")
        if most and used:
            limits.append(most[0] - used[0] + _reclaimable(group))
    return max(0.0, min(limits))


def _control_groups(kind: str) -> Iterator[Path]:
    """The folders of this process's control groups that limit ``cpu`` or ``memory``, each with those above it; on Linux."""
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "" or kind in kinds.split(","):
                top = _CONTROL_GROUPS / kind if kinds else _CONTROL_GROUPS
                own = top / path.lstrip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def _numbers(file: Path) -> list[float]:
    """The numbers in a line of a control group; empty: there is no such file, or no limit (``max``)."""
    try:
        return [float(word) for word in file.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def _reclaimable(group: Path) -> float:
    """Bytes of files in memory that a control group gives back when it needs room."""
    with suppress(OSError):
        facts = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return float(facts.get("total_inactive_file", facts.get("inactive_file", 0)))
    return 0.0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; only on Linux.

    Args:
        parent: the parent's process id, as the parent saw it, since it may have ended already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def python_command(code: str, *arguments: str) -> list[str]:
    """A command that runs ``code`` with ``sys.argv[1:] = arguments`` in this Python, and ends with this process."""
    tied = f"from fedpriv.processes import die_with_parent; die_with_parent({os.getpid()}); {code}"
    return [sys.executable, "-P", "-c", tied, *arguments]


def forked(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """The results of :func:`forked_in_order` as a list."""
    return list(forked_in_order(calls, workers))


def forked_in_order(calls: Sequence[Callable[[], T]], workers: int) -> Generator[T]:
    """Yield the results of calls in their order, each computed in a process forked from this one, with one torch thread.

    With one worker or one call, they are computed in this process. Processes that still run when the generator is closed are
    killed.

    Args:
        calls: their results must be picklable; the calls need not be.
        workers: processes at a time.

    Raises:
        FedprivError: a process ended without a result. An exception of a call is raised here.
    """
    if workers <= 1 or len(calls) <= 1:
        yield from (call() for call in calls)
        return
    context, results, left = multiprocessing.get_context("fork"), dict[int, Any](), list(enumerate(calls))
    running = dict[Connection, tuple[int, Any]]()
    try:
        for awaited in range(len(calls)):
            while awaited not in results:
                sys.stdout.flush()
                sys.stderr.flush()
                while left and len(running) < workers:
                    number, call = left.pop(0)
                    here, there = context.Pipe(duplex=False)
                    process = context.Process(target=_answer, args=(there, call, os.getpid()))
                    process.start()
                    there.close()
                    running[here] = number, process
                for connection in wait(list(running)):
                    assert isinstance(connection, Connection)
                    number, process = running.pop(connection)
                    results[number] = _result(connection, process)
            result = results.pop(awaited)
            if isinstance(result, _Raised):
                raise result.error
            yield result
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _result(connection: Connection, process: BaseProcess) -> Any:
    """The result that a forked process sent, or an error if it sent none."""
    try:
        result = pickle.loads(connection.recv_bytes())
        process.join()
    except EOFError:
        process.join()
        result = _Raised(FedprivError(f"a process ended without a result (exit code {process.exitcode})"))
    return result


class _Raised:
    """The exception of a call."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _answer(there: Connection, call: Callable[[], Any], parent: int) -> None:
    die_with_parent(parent)
    if "torch" in sys.modules:  # with more, it would wait for the parent's threads, which a fork lacks
        sys.modules["torch"].set_num_threads(1)
    try:
        result: Any = call()
    except Exception as error:
        result = _Raised(error)
    sys.stdout.flush()
    there.send_bytes(pickle.dumps(result))  # there.send would leave tensors in shared memory that ends with this process
