"""Numbers as the tables of a report show them."""

from __future__ import annotations

from collections.abc import Mapping

from rich.filesize import decimal


def by_seed(values: Mapping[int, str]) -> str:
    return ", ".join(values[seed] for seed in sorted(values)) or "–"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def in_bytes(value: float, precision: int = 1) -> str:
    return "0" if not value else str(decimal(round(value), precision=precision))
