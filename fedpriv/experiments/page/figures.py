"""Numbers as the tables of a report show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.filesize import decimal


def of_seeds(seeds: Sequence[int]) -> str:
    """The head of a column that has a value for each of these seeds."""
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}" if seeds else "each seed"


def by_seed(values: Mapping[int, str], seeds: Sequence[int]) -> str:
    """The values in the order of a column's seeds, a dash for those that are missing."""
    return ", ".join(values.get(seed, "–") for seed in seeds) if values else "–"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def in_bytes(value: float, precision: int = 1) -> str:
    return "0" if not value else str(decimal(round(value), precision=precision))
