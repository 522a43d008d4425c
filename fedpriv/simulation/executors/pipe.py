"""A pipe between a process and its fork, which moves large byte strings through shared memory."""

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
"""Size from which on byte strings go through shared memory; an ordinary pipe would split them, and copy each piece four times."""

Span = tuple[int, int]
"""Start and end of a byte string in the shared memory."""


class Pipe:
    """One end of a pipe. Each message is read before the reply is sent, so both ends can use the same shared memory."""

    def __init__(self, connection: Connection[Any, Any], file: int) -> None:
        self.connection = connection
        self._file, self._memory = file, mmap.mmap(-1, 1)

    @classmethod
    def pair(cls) -> tuple[Pipe, Pipe]:
        """Both ends; one of them is for a process that is forked before they are used."""
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
        large: list[bytes] = []
        _Pickler(pickled, large).dump(message)
        self._map(sum(map(len, large)), grow=True)
        self._memory.seek(0)
        for data in large:
            self._memory.write(data)
        self.connection.send_bytes(pickled.getbuffer())

    def receive(self) -> Any:
        """Wait for the other end's message and return it.

        Raises:
            EOFError, ConnectionError: the other end is closed.
        """
        return _Unpickler(io.BytesIO(self.connection.recv_bytes()), self._read).load()

    def close(self) -> None:
        """Close this end."""
        self.connection.close()
        self._memory.close()
        os.close(self._file)

    def _read(self, span: Span) -> bytes:
        start, end = span
        self._map(end)
        return self._memory[start:end]

    def _map(self, size: int, grow: bool = False) -> None:
        """Map at least the first ``size`` bytes of the shared memory."""
        if size <= len(self._memory):
            return
        if grow and size > os.fstat(self._file).st_size:
            os.ftruncate(self._file, size)
        self._memory.close()
        self._memory = mmap.mmap(self._file, 0)


def _nameless_file() -> int:
    """An open file without a name, on Linux in memory; it is freed when the last process closes it."""
    if sys.platform == "linux":
        return os.memfd_create("fedpriv")
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


class _Pickler(pickle.Pickler):
    """Moves large byte strings out of the pickle into a list."""

    def __init__(self, file: io.BytesIO, large: list[bytes]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._large, self._end = large, 0

    def persistent_id(self, what: object) -> Span | None:
        if type(what) is not bytes or len(what) < LARGE:
            return None
        self._large.append(what)
        start, self._end = self._end, self._end + len(what)
        return start, self._end


class _Unpickler(pickle.Unpickler):
    """Puts large byte strings back."""

    def __init__(self, file: io.BytesIO, read_span: Callable[[Span], bytes]) -> None:
        super().__init__(file)
        self._read_span = read_span

    def persistent_load(self, span: Span) -> bytes:
        return self._read_span(span)
