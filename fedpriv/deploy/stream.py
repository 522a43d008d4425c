"""Framing of bytes on a stream: a head and its parts. Imports nothing of fedpriv, so that a relay starts quickly."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import IO

MAX_HEAD_BYTES = 2**24
MAX_PARTS = 4096
ALWAYS_ALLOWED = 2**25
"""Bytes that arrays or answers may have, however little was sent for them."""
MAX_GROWTH = 16
"""Above that, how many times larger they may be than what was sent: equal parts of a net, such as zeros, are sent once."""


class Broken(ValueError):
    """Bytes that are not a head and its parts."""


def size_limit(sent: int) -> int:
    """The most bytes that so many sent bytes may become, or be answered with."""
    return max(ALWAYS_ALLOWED, MAX_GROWTH * sent)


def check_growth(size: int, sent: int) -> None:
    """Raise :class:`Broken` if arrays are much larger than the bytes that were sent for them."""
    if size > size_limit(sent):
        raise Broken(f"arrays of {size} bytes, of which {sent} were sent")


def write(stream: IO[bytes], head: bytes, parts: Sequence[bytes]) -> None:
    """Send a head and its parts."""
    sizes = json.dumps([len(head), *map(len, parts)]).encode()
    stream.write(len(sizes).to_bytes(4, "big") + sizes + head)
    for part in parts:
        stream.write(part)
    stream.flush()


def read(stream: IO[bytes]) -> tuple[bytes, list[bytes]]:
    """Read the next head and its parts.

    Raises:
        EOFError: the other end is closed.
        Broken: the bytes are something else.
    """
    length = int.from_bytes(_read_exactly(stream, 4), "big")
    if length > 16 * MAX_PARTS:
        raise Broken(f"a list of sizes that takes {length} bytes")
    try:
        sizes = json.loads(_read_exactly(stream, length))
    except ValueError:
        raise Broken("no list of sizes") from None
    if not isinstance(sizes, list) or not sizes or len(sizes) > MAX_PARTS or not all(type(n) is int and n >= 0 for n in sizes):
        raise Broken("no list of sizes")
    if sizes[0] > MAX_HEAD_BYTES:
        raise Broken(f"a head of {sizes[0]} bytes")
    head, *parts = (_read_exactly(stream, size) for size in sizes)
    return head, parts


def ask(address: Path, head: bytes, parts: Sequence[bytes], seconds: float | None = None) -> tuple[bytes, list[bytes]]:
    """Send a request to a process that listens on a Unix socket, and wait for its response.

    Raises:
        OSError: it does not listen, or does not respond in time.
        EOFError, Broken: it ended, or its response cannot be read.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(str(address))
        with connection.makefile("rb") as incoming, connection.makefile("wb") as outgoing:
            write(outgoing, head, parts)
            return read(incoming)


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other end is closed")
    return data
