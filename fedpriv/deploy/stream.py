"""Bytes over a stream: a head and as many parts as it announces; what they mean is not known here, so that this is light."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import IO

LONGEST_HEAD = 2**24
"""Bytes of a head."""
MOST_PARTS = 4096


class Broken(ValueError):
    """Bytes that are no letter."""


def write(stream: IO[bytes], head: bytes, parts: Sequence[bytes]) -> None:
    """Send a head and its parts."""
    sizes = json.dumps([len(head), *map(len, parts)]).encode()
    stream.write(len(sizes).to_bytes(4, "big") + sizes + head)
    for part in parts:
        stream.write(part)
    stream.flush()


def read(stream: IO[bytes]) -> tuple[bytes, list[bytes]]:
    """The next head and its parts.

    Raises:
        EOFError: the other end is closed.
        Broken: it sends something else.
    """
    length = int.from_bytes(_exactly(stream, 4), "big")
    if length > 16 * MOST_PARTS:
        raise Broken(f"a list of sizes that takes {length} bytes")
    try:
        sizes = json.loads(_exactly(stream, length))
    except ValueError:
        raise Broken("no list of sizes") from None
    if not isinstance(sizes, list) or not sizes or len(sizes) > MOST_PARTS or not all(type(n) is int and n >= 0 for n in sizes):
        raise Broken("no list of sizes")
    if sizes[0] > LONGEST_HEAD:
        raise Broken(f"a head of {sizes[0]} bytes")
    head, *parts = (_exactly(stream, size) for size in sizes)
    return head, parts


def ask(address: Path, head: bytes, parts: Sequence[bytes], seconds: float | None = None) -> tuple[bytes, list[bytes]]:
    """Send a letter to a process that listens on a Unix socket, and wait for its answer.

    Raises:
        OSError: it does not listen, or does not answer in time.
        EOFError, Broken: it ended, or answers nonsense.
    """
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(seconds)
        one.connect(str(address))
        with one.makefile("rb") as incoming, one.makefile("wb") as outgoing:
            write(outgoing, head, parts)
            return read(incoming)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other end is closed")
    return data
