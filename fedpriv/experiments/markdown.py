"""Markdown elements of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """A table; ``head``: the columns' names, separated by `` | ``."""
    columns = head.split(" | ")
    lines = [columns, ["---"] * len(columns), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(texts: Iterable[str]) -> str:
    """A list; each text is joined to one line."""
    return "\n".join(f"* {' '.join(text.split())}" for text in texts)
