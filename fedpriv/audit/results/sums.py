"""Attacks on sums of secure aggregation beside the same attacks on single uploads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Value:
    """A figure of an attack with its 95 % interval; ``n``: the number of samples, or of messages for labels."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class SumComparison:
    """An attack on the sums that the server saw, beside the same on the uploads behind them; ``None``: not mounted there."""

    measure: Literal["images", "texts", "rows", "cells", "label sets", "membership"]
    attack: str
    on_sums: Value | None
    on_uploads: Value | None
