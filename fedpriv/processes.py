"""Processes that end when the one that started them ends, however that ends; and calls in forked ones."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
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
    """The results of calls, each made in a process forked from this one; of few processes or calls, made here.

    Args:
        calls: their results are sent by pickle; they themselves are not, as a fork has them.
        at_once: processes at a time.

    Raises:
        FedprivError: a process ended without a result. Whatever a call raises is raised here, that of the first call that did.
    """
    if at_once <= 1 or len(calls) <= 1:
        return [call() for call in calls]
    context, results, left = multiprocessing.get_context("fork"), dict[int, Any](), list(enumerate(calls))
    running = dict[Connection, tuple[int, Any]]()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        while left or running:
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
                try:
                    results[number] = pickle.loads(one.recv_bytes())
                except EOFError:
                    process.join()
                    raise FedprivError(f"a process ended without a result (exit code {process.exitcode})") from None
                process.join()
    finally:
        for _, process in running.values():
            process.kill()
    for number in sorted(results):
        if isinstance(results[number], _Raised):
            raise results[number].error
    return [results[number] for number in range(len(calls))]


class _Raised:
    """What a call raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _answer(there: Connection, call: Callable[[], Any], parent: int) -> None:
    die_with_parent(parent)
    try:
        result: Any = call()
    except Exception as error:
        result = _Raised(error)
    sys.stdout.flush()
    there.send_bytes(pickle.dumps(result))  # there.send would leave tensors in memory that ends with this process
