"""Names and texts that this process did not choose, as they may be shown."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(text: str, most: int, end: int) -> str:
    """A text of at most ``most`` letters: of a longer one the middle is cut out, and its last ``end`` letters stay."""
    return text if len(text) <= most else f"{text[: most - end - 5]} ... {text[-end:]}"


def printable(text: str) -> str:
    """A text for a terminal: line breaks and tabs stay, every other character that is not printed becomes its escape.

    So that no name moves the cursor, changes colours, reverses what stands beside it, or cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def shape_text(shape: Sequence[int]) -> str:
    """``(3, 32, 32)`` as ``3x32x32``."""
    return "x".join(map(str, shape)) or "no dimension"
