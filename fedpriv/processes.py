"""Processes that end when the one that started them ends, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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
