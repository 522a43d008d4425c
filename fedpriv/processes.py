"""Processes that end when the one that started them ends, however that ends; and calls in forked ones."""

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
    """Have the kernel end this process when its parent is gone; on Linux, elsewhere nothing does.

    Args:
        parent: the parent's process id, as the parent saw it: it may be gone before this is called.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def python_command(code: str, *arguments: str) -> list[str]:
    """A command that runs ``code`` with ``sys.argv[1:] = arguments`` in a Python of this kind, and ends with this process."""
    tied = f"from fedpriv.processes import die_with_parent; die_with_parent({os.getpid()}); {code}"
    return [sys.executable, "-P", "-c", tied, *arguments]


def forked(calls: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """All results of :func:`forked_in_order`."""
    return list(forked_in_order(calls, at_once))


def forked_in_order(calls: Sequence[Callable[[], T]], at_once: int) -> Generator[T]:
    """The results of calls, one by one, each made in a process forked from this one, with one torch thread; of few processes or
    calls, made here.

    The calls after one whose result is awaited run beside it; those that still run when the iterator is closed are killed.

    Args:
        calls: their results are sent by pickle; they themselves are not, as a fork has them.
        at_once: processes at a time.

    Raises:
        FedprivError: a process ended without a result. Whatever a call raises is raised here, in place of its result.
    """
    if at_once <= 1 or len(calls) <= 1:
        yield from (call() for call in calls)
        return
    context, results, left = multiprocessing.get_context("fork"), dict[int, Any](), list(enumerate(calls))
    running = dict[Connection, tuple[int, Any]]()
    try:
        for awaited in range(len(calls)):
            while awaited not in results:
                sys.stdout.flush()
                sys.stderr.flush()
                while left and len(running) < at_once:
                    number, call = left.pop(0)
                    here, there = context.Pipe(duplex=False)
                    process = context.Process(target=_answer, args=(there, call, os.getpid()))
                    process.start()
                    there.close()
                    running[here] = number, process
                for one in wait(list(running)):
                    assert isinstance(one, Connection)
                    number, process = running.pop(one)
                    results[number] = _result(one, process)
            result = results.pop(awaited)
            if isinstance(result, _Raised):
                raise result.error
            yield result
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _result(connection: Connection, process: BaseProcess) -> Any:
    """What a forked process sent, or an error where it ended without."""
    try:
        result = pickle.loads(connection.recv_bytes())
        process.join()
    except EOFError:
        process.join()
        result = _Raised(FedprivError(f"a process ended without a result (exit code {process.exitcode})"))
    return result


class _Raised:
    """What a call raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _answer(there: Connection, call: Callable[[], Any], parent: int) -> None:
    die_with_parent(parent)
    if "torch" in sys.modules:  # it would wait for the threads with which the parent has computed, which no fork has
        sys.modules["torch"].set_num_threads(1)
    try:
        result: Any = call()
    except Exception as error:
        result = _Raised(error)
    sys.stdout.flush()
    there.send_bytes(pickle.dumps(result))  # there.send would leave tensors in memory that ends with this process
