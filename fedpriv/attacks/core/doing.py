"""What an attack is doing, for another thread that shows the progress; the attack need not know who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PARTS: list[str] = []
"""What is being done, from the whole to its smallest part."""


@contextmanager
def doing(what: str = "") -> Iterator[Callable[[str], None]]:
    """Run a block as a part of what is being done; yields a function that replaces the part's text."""
    place = len(_PARTS)
    _PARTS.append(what)

    def tell(text: str) -> None:
        _PARTS[place] = text

    try:
        yield tell
    finally:
        del _PARTS[place:]


def now() -> str:
    """What is being done, in one line; empty if unknown."""
    return ", ".join(part for part in tuple(_PARTS) if part)
