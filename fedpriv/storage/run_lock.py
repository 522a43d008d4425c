"""The lock of the process that runs a run; the system releases it when the process ends, for whatever reason."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpriv.errors import UsageError

PATIENCE = 0.1
"""Seconds to wait for a lock, which may be held for a moment by a process that only checks it."""


class RunLock:
    """The lock of a run folder: a file that names the process that runs the run, or ran it last."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @contextmanager
    def held(self, runs: bool = True) -> Iterator[None]:
        """A block in which no other process has the lock; raises :class:`UsageError` if one has, with its number and host.

        Args:
            runs: whether this process runs the run, so that it is named in the file.
        """
        from filelock import FileLock, Timeout

        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self._file, timeout=PATIENCE))
                if runs:
                    self._file.write_text(_this_process(), encoding="utf-8")
            except Timeout:
                holder = self._file.read_text(encoding="utf-8") or "another process"
                own = "; it is this process; call `close()` on its rounds iterator" if holder == _this_process() else ""
                raise UsageError(f"{holder} is running the run in {self._file.parent}{own}") from None
            except OSError as error:
                raise UsageError(f"cannot write in {self._file.parent}: {error.strerror}") from None
            yield

    def is_held(self) -> bool | None:
        """Whether a process has the lock; ``None``: unknown.

        A free lock only means that no process of this machine has it, as shared file systems may not show locks of others.
        """
        try:
            with self._file.open(encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several processes may check at the same time
                except BlockingIOError:
                    return True
                return False if file.read().endswith(_here()) else None
        except OSError:  # the file is missing or unreadable, or the file system has no locks
            return None


def _this_process() -> str:
    return f"process {os.getpid()}{_here()}"


def _here() -> str:
    return f" on {socket.gethostname()}"
