"""Rows to attack without a data set: made up from the columns of a table."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding

MISSING = 0.1
"""Share of numbers that are missing, in columns that miss any."""
EXAMPLE = RowEncoding(
    (
        NumberColumn("age", 47.0, 16.0),
        NumberColumn("weight", 75.0, 14.0),
        NumberColumn("visits", 3.0, 2.5),
        NumberColumn("creatinine", 1.1, 0.4, gaps=True),
        CategoryColumn("sex", ("f", "m")),
        CategoryColumn("smoker", ("never", "former", "current")),
        CategoryColumn("admission", ("emergency", "elective", "transfer", "birth")),
        CategoryColumn("ward", tuple("abcdefgh")),
        CategoryColumn("diagnosis", tuple(f"D{number:02}" for number in range(12))),
    )
)
"""The columns of a small table of patients: numbers, of which one is missing now and then, and categories of 2 to 12 levels."""


def made_up_rows(encoding: RowEncoding, count: int, generator: torch.Generator) -> Tensor:
    """Rows of a table ``(count, F)`` whose cells are independent, and have the means and deviations of the columns.

    Numbers are normal, and kept in their range where it is known. The k-th level of a category is k times as rare as the first.
    """
    rows = torch.zeros(count, encoding.width)
    for column, at in zip(encoding.columns, encoding.entries, strict=True):
        if isinstance(column, CategoryColumn):
            levels = (1 / torch.arange(1.0, column.width + 1)).multinomial(count, replacement=True, generator=generator)
            rows[torch.arange(count), at.start + levels] = 1.0
            continue
        cells = column.mean + column.std * torch.randn(count, generator=generator)
        low, high = (-math.inf if column.low is None else column.low), (math.inf if column.high is None else column.high)
        cells = cells.clamp(low, high)
        rows[:, at.start] = (cells - column.mean) / column.std
        if column.gaps:
            missing = torch.rand(count, generator=generator) < MISSING
            rows[missing, at.start], rows[missing, at.start + 1] = 0.0, 1.0
    return rows
