"""Names and texts from elsewhere, made safe to show."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(text: str, most: int, end: int) -> str:
    """A text of at most ``most`` letters: the middle of a longer one is cut out, before its last ``end`` letters."""
    return text if len(text) <= most else f"{text[: most - end - 5]} ... {text[-end:]}"


def first_few(names: Sequence[str], most: int) -> str:
    """The first names of a list, with dots behind them where there are more."""
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def printable(text: str) -> str:
    """A text for a terminal: unprintable characters other than line breaks and tabs become escapes.

    So no name can move the cursor, change colours or the direction of writing, or fail to be encoded.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1] for letter in text)


def shape_text(shape: Sequence[int]) -> str:
    """``(3, 32, 32)`` as ``3x32x32``."""
    return "x".join(map(str, shape)) or "no dimension"
