"""What an attack is doing: another thread reads it and shows the progress, so that an attack need not know who does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PARTS: list[str] = []
"""From the whole to its smallest part."""


@contextmanager
def doing(what: str = "") -> Iterator[Callable[[str], None]]:
    """A block that is a part of what is being done; it gets a function by which it says how far it is."""
    place = len(_PARTS)
    _PARTS.append(what)

    def tell(text: str) -> None:
        _PARTS[place] = text

    try:
        yield tell
    finally:
        del _PARTS[place:]


def now() -> str:
    """What is being done; empty where nothing is said."""
    return ", ".join(part for part in tuple(_PARTS) if part)
