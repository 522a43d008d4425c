"""What crosses between a server and one of its clients: a head of JSON, and sealed messages as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from fedpriv.wire import Sealed, unseal
from fedpriv.wire.message import Refused

LONGEST_HEAD = 2**24
"""Bytes of a head; the largest tells what thousands of clients declared."""
MOST_PARTS = 256


@dataclass(frozen=True)
class Frame:
    """One letter, with as many sealed messages as its head says."""

    head: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()

    def write(self, stream: IO[bytes]) -> None:
        """Send it over a stream of bytes."""
        head = json.dumps({"head": self.head, "sizes": [len(part) for part in self.parts]}).encode()
        stream.write(len(head).to_bytes(4, "big") + head)
        for part in self.parts:
            stream.write(part)
        stream.flush()

    @classmethod
    def read(cls, stream: IO[bytes]) -> Frame:
        """The next one of a stream.

        Raises:
            EOFError: the other end is closed.
            Refused: it is none.
        """
        size = int.from_bytes(_exactly(stream, 4), "big")
        if size > LONGEST_HEAD:
            raise Refused(f"a frame whose head takes {size} bytes")
        letter = _json(_exactly(stream, size))
        sizes = letter.get("sizes")
        if not isinstance(sizes, list) or len(sizes) > MOST_PARTS or not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise Refused("a frame without the sizes of its parts")
        return cls.of(letter.get("head"), [_exactly(stream, n) for n in sizes])

    @classmethod
    def of(cls, head: Any, parts: Sequence[bytes]) -> Frame:
        """The frame of a head, as JSON bytes or as a mapping, and its parts.

        Raises:
            Refused: it is none.
        """
        found = _json(head) if isinstance(head, bytes) else head
        if not isinstance(found, dict):
            raise Refused("a frame without a head")
        return cls(found, tuple(parts))

    def sealed(self, place: Any) -> Sealed | None:
        """The message at a place among its parts; ``None``: the place is none.

        Raises:
            Refused: there is none, or it is no sealed message.
        """
        if place is None:
            return None
        if not isinstance(place, int) or not 0 <= place < len(self.parts):
            raise Refused(f"a frame of {len(self.parts)} messages names message {place}")
        return unseal(self.parts[place])


@dataclass
class Letter:
    """A frame that is being written: what it asks or answers, in order, with the messages that belong to it."""

    said: list[dict[str, Any]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    def say(self, facts: Mapping[str, Any], **messages: Sealed | None) -> None:
        """Add an entry; each message is named by its place among the parts."""
        places: dict[str, int] = {}
        for name, message in messages.items():
            if message is not None:
                places[name] = len(self.parts)
                self.parts.append(message.data)
        self.said.append({**facts, **places})

    def frame(self, **head: Any) -> Frame:
        """All of it."""
        return Frame({**head, "said": self.said}, tuple(self.parts))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other end is closed")
    return data


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("a frame whose head is no JSON") from None
    if not isinstance(found, dict):
        raise Refused("a frame whose head is no mapping")
    return found
