"""Which process plays a run: the system frees its lock when the process is gone, however it ended."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpriv.errors import UsageError

SOON = 0.1
"""Seconds for which a held lock is waited for: it may be that of someone who only looks."""


class RunLock:
    """The lock of a run's folder: a file that names the process that plays the run, or was the last to."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @contextmanager
    def held(self, plays: bool = True) -> Iterator[None]:
        """A block in which no other process has the lock; :class:`UsageError` where one does, with its number and host.

        Args:
            plays: this process plays the run, and its name replaces that of the last one that did.
        """
        from filelock import FileLock, Timeout

        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self._file, timeout=SOON))
                if plays:
                    self._file.write_text(_this_process(), encoding="utf-8")
            except Timeout:
                holder = self._file.read_text(encoding="utf-8") or "another process"
                own = "; that is this process, and `close()` of its rounds ends it" if holder == _this_process() else ""
                raise UsageError(f"{holder} is running the run in {self._file.parent}{own}") from None
            except OSError as error:
                raise UsageError(f"cannot write in {self._file.parent}: {error.strerror}") from None
            yield

    def is_held(self) -> bool | None:
        """Whether a process has the lock; ``None``: not known.

        A free lock says something about processes of this machine alone: not all shared file systems tell other machines of it.
        """
        try:
            with self._file.open(encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at once
                except BlockingIOError:
                    return True
                return False if file.read().endswith(_here()) else None
        except OSError:  # there is no such file, or it cannot be read, or the file system has no locks
            return None


def _this_process() -> str:
    return f"process {os.getpid()}{_here()}"


def _here() -> str:
    return f" on {socket.gethostname()}"
