"""Messages between a process and its fork; large byte strings go through shared memory."""

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
"""Byte strings of this size and larger go through shared memory; a pipe would split them and copy each piece four times."""

Place = tuple[int, int]
"""Where a byte string lies: its start and its end."""


class Mail:
    """One end of a connection. The ends take turns: each message is read before the reply, so both can use one shared memory."""

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
        """Send a message that can be pickled.

        Raises:
            ConnectionError: the other end is closed.
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
        """Wait for the other end's message and return it.

        Raises:
            EOFError, ConnectionError: the other end is closed.
        """
        return _Unpickler(io.BytesIO(self.connection.recv_bytes()), self._taken).load()

    def close(self) -> None:
        """Close this end."""
        self.connection.close()
        self._memory.close()
        os.close(self._file)

    def _taken(self, place: Place) -> bytes:
        start, end = place
        self._reach(end)
        return self._memory[start:end]

    def _reach(self, size: int, grow: bool = False) -> None:
        """Map at least the first ``size`` bytes of the shared memory."""
        if size <= len(self._memory):
            return
        if grow and size > os.fstat(self._file).st_size:
            os.ftruncate(self._file, size)
        self._memory.close()
        self._memory = mmap.mmap(self._file, 0)


def _nameless_file() -> int:
    """An open file without a name, in memory on Linux; it is freed when the last process closes it."""
    if sys.platform == "linux":
        return os.memfd_create("fedpriv")
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


class _Pickler(pickle.Pickler):
    """Moves large byte strings out of the pickle into a list."""

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
    """Puts large byte strings back."""

    def __init__(self, file: io.BytesIO, taken: Callable[[Place], bytes]) -> None:
        super().__init__(file)
        self._taken = taken

    def persistent_load(self, place: Place) -> bytes:
        return self._taken(place)
