"""Names and texts that this process did not choose, as they may be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text for a terminal: line breaks and tabs stay, every other character that is not printed becomes its escape.

    So that no name moves the cursor, changes colours, reverses what stands beside it, or cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)
