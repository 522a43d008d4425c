"""The server's database. What was delivered is deleted from it, but SQLite keeps the room in its files until it is told to."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

EVERY = 60.0
"""Seconds between two looks at its size."""
LARGE = 2**25
"""Bytes above which its files are made smaller."""


def size(database: Path) -> int:
    """Bytes of a database's files."""
    files = (database, database.with_name(f"{database.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def compact(database: Path) -> None:
    """Give the room of what was deleted back to the disk. If another process writes meanwhile, nothing happens."""
    with closing(sqlite3.connect(database, timeout=1, isolation_level=None)) as connection, suppress(sqlite3.OperationalError):
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class Tended:
    """Makes a database smaller when it is large and no run uses it; called regularly.

    Args:
        idle: whether no run uses it.
    """

    def __init__(self, database: Path, idle: Callable[[], bool]) -> None:
        self._database, self._idle, self._next = database, idle, 0.0

    def __call__(self) -> None:
        """Look, if it is time to."""
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + EVERY
        if size(self._database) > LARGE and self._idle():
            compact(self._database)
