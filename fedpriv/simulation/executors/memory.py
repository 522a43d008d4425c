"""Settings of the process's allocator for freed memory."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**30
"""Bytes up to which a freed block is kept."""


def keep_freed_memory() -> None:
    """Have the C library keep freed memory instead of giving it back, until the process ends; elsewhere than on Linux, nothing.

    A training step frees its activations and the next one asks for as much. Given back in between, the megabytes of several
    clients cost as many page faults in every step, which were a third of its time.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; another C library may not have it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)
