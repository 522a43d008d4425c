"""What crosses between a server and one of its clients: a head of JSON, and sealed messages as they are."""

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

DEEPEST = 64
"""How deep a head may be nested; the terms of a run, which are the deepest, take about ten."""


def line_of(told: Any) -> str:
    """What another machine told, as it may be shown and kept: one line of at most 300 letters, all of which can be printed."""
    try:
        text = str(told)
    except RecursionError:  # it was read higher up the stack
        text = "something nested too deeply"
    return shortened(printable(" ".join(shortened(text, 3000, 1000).split())), 300, 100)


@dataclass(frozen=True)
class Frame:
    """One letter, with as many sealed messages as its head says."""

    head: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()

    @property
    def head_bytes(self) -> bytes:
        """The head as it crosses."""
        return json.dumps(self.head).encode()

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        found = hashlib.sha256(self.head_bytes)
        for part in self.parts:
            found.update(hashlib.sha256(part).digest())
        return found.digest()

    @property
    def said(self) -> list[Any]:
        """What it says, in order; nothing where that is no list."""
        said = self.head.get("said")
        return said if isinstance(said, list) else []

    @property
    def error(self) -> Any:
        """Why it is no answer; ``None``: it is one."""
        return self.head.get("error")

    @classmethod
    def of(cls, head: bytes, parts: Sequence[bytes]) -> Frame:
        """The frame of a head as it crossed, and its parts.

        Raises:
            Refused: the head is no mapping of JSON, or nested so deep that what reads it may run out of stack.
        """
        try:
            found = json.loads(head)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refused("a frame whose head is no mapping of JSON")
        if not _ends_within(DEEPEST, found):
            raise Refused(f"a frame whose head is nested more than {DEEPEST} deep")
        return cls(found, tuple(parts))

    def sealed(self, place: Any) -> Sealed | None:
        """The message at a place among its parts; ``None``: the place is none.

        Raises:
            Refused: there is none, or it is no sealed message.
        """
        if place is None:
            return None
        if not isinstance(place, int) or not 0 <= place < len(self.parts):
            raise Refused(f"a frame of {len(self.parts)} messages names message {line_of(place)}")
        return unseal(self.parts[place])


@dataclass
class Envelope:
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


def _ends_within(deepest: int, value: Any) -> bool:
    """Whether JSON is nested no deeper; without recursion, as it may be too deep for that."""
    level = [value]
    for _ in range(deepest):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = list(chain.from_iterable(inner))
    return not any(isinstance(one, dict | list) for one in level)
