"""Messages between a process and one that it forked; what is large goes by way of memory that both have."""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

LARGE = 2**14
"""Bytes from which on a byte string is laid into the memory; a pipe would take it in pieces and copy each of them four times."""

Place = tuple[int, int]
"""Where a byte string lies: its start and its end."""


class Mail:
    """One end. The two ends take turns, so that one memory serves both ways: whoever answers has taken out what he was sent."""

    def __init__(self, connection: Connection[Any, Any], file: int) -> None:
        self.connection = connection
        self._file, self._memory = file, mmap.mmap(-1, 1)

    @classmethod
    def pair(cls) -> tuple[Mail, Mail]:
        """Two ends, one of them for a process that is forked before they are used."""
        ours, theirs = multiprocessing.Pipe()
        file = _nameless_file()
        return cls(ours, file), cls(theirs, os.dup(file))

    def send(self, message: object) -> None:
        """Send what can be pickled.

        Raises:
            ConnectionError: nobody has the other end.
            OSError: there is no room in memory.
        """
        pickled = io.BytesIO()
        laid: list[bytes] = []
        _Pickler(pickled, laid).dump(message)
        self._reach(sum(map(len, laid)), grow=True)
        self._memory.seek(0)
        for data in laid:
            self._memory.write(data)
        self.connection.send_bytes(pickled.getbuffer())

    def receive(self) -> Any:
        """What the other end sent; waits for it.

        Raises:
            EOFError, ConnectionError: nobody has the other end.
        """
        return _Unpickler(io.BytesIO(self.connection.recv_bytes()), self._taken).load()

    def close(self) -> None:
        """Let go of this end."""
        self.connection.close()
        self._memory.close()
        os.close(self._file)

    def _taken(self, place: Place) -> bytes:
        start, end = place
        self._reach(end)
        return self._memory[start:end]

    def _reach(self, size: int, grow: bool = False) -> None:
        """Have at least the first ``size`` bytes at hand."""
        if size <= len(self._memory):
            return
        if grow and size > os.fstat(self._file).st_size:
            os.ftruncate(self._file, size)
        self._memory.close()
        self._memory = mmap.mmap(self._file, 0)


def _nameless_file() -> int:
    """An open file, in memory where the system can, that is gone with the last process that has it open."""
    if sys.platform == "linux":
        return os.memfd_create("fedpriv")
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


class _Pickler(pickle.Pickler):
    """Leaves out large byte strings, of which it makes a list."""

    def __init__(self, file: io.BytesIO, laid: list[bytes]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._laid, self._end = laid, 0

    def persistent_id(self, what: object) -> Place | None:
        if type(what) is not bytes or len(what) < LARGE:
            return None
        self._laid.append(what)
        start, self._end = self._end, self._end + len(what)
        return start, self._end


class _Unpickler(pickle.Unpickler):
    """Puts them back in."""

    def __init__(self, file: io.BytesIO, taken: Callable[[Place], bytes]) -> None:
        super().__init__(file)
        self._taken = taken

    def persistent_load(self, place: Place) -> bytes:
        return self._taken(place)
