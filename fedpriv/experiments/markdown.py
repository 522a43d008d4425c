"""Markdown elements of reports, and numbers as their tables show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.filesize import decimal


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """A table; ``head``: the columns' names, separated by `` | ``."""
    columns = head.split(" | ")
    lines = [columns, ["---"] * len(columns), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(texts: Iterable[str]) -> str:
    """A list; each text is joined to one line."""
    return "\n".join(f"* {' '.join(text.split())}" for text in texts)


def name_seeds(seeds: Sequence[int]) -> str:
    """The head of a column that has a value for each of these seeds."""
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}" if seeds else "each seed"


def by_seed(values: Mapping[int, str], seeds: Sequence[int]) -> str:
    """The values in the order of a column's seeds, a dash for those that are missing."""
    return ", ".join(values.get(seed, "–") for seed in seeds) if values else "–"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def in_bytes(value: float, precision: int = 1) -> str:
    return "0" if not value else str(decimal(round(value), precision=precision))
