"""Processes that end when their parent ends, and function calls in forked processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from fedpriv.errors import FedprivError

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


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
