"""What a server and a client exchange: frames with a JSON head, and sealed messages as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fedpriv.untrusted.names import printable, shortened
from fedpriv.wire import Sealed, unseal
from fedpriv.wire.message import Refused

MAX_DEPTH = 64
"""Nesting levels of a head; the setup of a run, the deepest one, has about ten."""


def one_line(value: Any) -> str:
    """A value from another machine as one line of at most 300 printable characters."""
    try:
        text = str(value)
    except RecursionError:  # the JSON was decoded with more stack than is left here
        text = "something nested too deeply"
    return shortened(printable(" ".join(shortened(text, 3000, 1000).split())), 300, 100)


@dataclass(frozen=True)
class Frame:
    """A request or a response: a head, and the sealed messages that its entries refer to by position."""

    head: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()

    @property
    def head_bytes(self) -> bytes:
        """The head as it is sent."""
        return json.dumps(self.head).encode()

    @property
    def digest(self) -> bytes:
        """SHA-256 of head and parts."""
        digest = hashlib.sha256(self.head_bytes)
        for part in self.parts:
            digest.update(hashlib.sha256(part).digest())
        return digest.digest()

    @property
    def entries(self) -> list[Any]:
        """The requests, or their responses, in order; empty if the head has no list of them."""
        entries = self.head.get("entries")
        return entries if isinstance(entries, list) else []

    @property
    def error(self) -> Any:
        """The reason for which the request failed, as the client gives it; ``None`` for success."""
        return self.head.get("error")

    @classmethod
    def of(cls, head: bytes, parts: Sequence[bytes]) -> Frame:
        """Decode a frame.

        Raises:
            Refused: the head is no JSON object, or is nested deeper than ``MAX_DEPTH``.
        """
        try:
            decoded = json.loads(head)
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise Refused("a frame whose head is no mapping of JSON")
        if not _is_nested_within(MAX_DEPTH, decoded):
            raise Refused(f"a frame whose head is nested more than {MAX_DEPTH} deep")
        return cls(decoded, tuple(parts))

    def sealed(self, index: Any) -> Sealed | None:
        """The message in a part; ``None`` for the index ``None``.

        Raises:
            Refused: there is no such part, or it is not a sealed message.
        """
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.parts):
            raise Refused(f"a frame of {len(self.parts)} messages names message {one_line(index)}")
        return unseal(self.parts[index])


@dataclass
class Envelope:
    """A frame under construction."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    def add(self, facts: Mapping[str, Any], **messages: Sealed | None) -> None:
        """Add an entry; each of its messages becomes a part, and the entry has the part's index under the message's name."""
        indices: dict[str, int] = {}
        for name, message in messages.items():
            if message is not None:
                indices[name] = len(self.parts)
                self.parts.append(message.data)
        self.entries.append({**facts, **indices})

    def frame(self, **head: Any) -> Frame:
        """The frame, with further keys of its head."""
        return Frame({**head, "entries": self.entries}, tuple(self.parts))


def _is_nested_within(depth: int, value: Any) -> bool:
    """Whether JSON has at most so many levels; iterative, as recursion may exhaust the stack."""
    level = [value]
    for _ in range(depth):
        inner = [list(item.values()) if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = list(chain.from_iterable(inner))
    return not any(isinstance(item, dict | list) for item in level)
