"""The columns of a table as an attacker knows them: how cells are written as the numbers that a net takes, and back.

Server and clients agree on this before round 1, so that no attacker has to guess it. It describes what
``fedpriv.data.encoding`` does: a number is standardised; a missing one is 0, and a second entry may say that it is missing; a
category is one-hot, with or without an entry for levels that have none of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

Cell: TypeAlias = float | str | None
"""A number, a level, or ``None`` for a missing number and for a level that has no entry of its own."""

MISSING = 0.1
"""Share of made-up numbers that are missing, in columns that miss any."""


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, each written as ``(number - mean) / std``.

    Attributes:
        gaps: whether a second entry is 1 where the number is missing.
        low, high: the range of the numbers; ``None`` where the attacker does not know it.
    """

    name: str
    mean: float = 0.0
    std: float = 1.0
    gaps: bool = False
    low: float | None = None
    high: float | None = None

    @property
    def width(self) -> int:
        """Entries of a row."""
        return 2 if self.gaps else 1

    def encode(self, cell: Cell) -> list[float]:
        """A number or ``None`` as entries.

        Raises:
            ValueError: it is no number, or it is missing in a column without an entry for that.
        """
        if isinstance(cell, str) or (cell is None and not self.gaps):
            raise ValueError(f"column {self.name!r} holds numbers, not {cell!r}")
        value = 0.0 if cell is None else (cell - self.mean) / self.std
        return [value, float(cell is None)] if self.gaps else [value]

    def decode(self, entries: Sequence[float]) -> Cell:
        """The number that entries stand for; ``None`` where it is missing."""
        if entries[0] != entries[0] or (self.gaps and not entries[1] <= 0.5):
            return None
        return entries[0] * self.std + self.mean


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories, each written as one-hot.

    Attributes:
        levels: those with an entry of their own, the most frequent first.
        other: whether there is a last entry for all other levels.
    """

    name: str
    levels: tuple[str, ...]
    other: bool = True

    @property
    def width(self) -> int:
        """Entries of a row."""
        return len(self.levels) + self.other

    def encode(self, cell: Cell) -> list[float]:
        """A level as entries; ``None``: another one.

        Raises:
            ValueError: it has no entry.
        """
        if cell is not None and cell not in self.levels:
            raise ValueError(f"column {self.name!r} has no level {cell!r}")
        if cell is None and not self.other:
            raise ValueError(f"column {self.name!r} has no entry for other levels")
        place = len(self.levels) if cell is None else self.levels.index(str(cell))
        return [float(number == place) for number in range(self.width)]

    def decode(self, entries: Sequence[float]) -> Cell:
        """The level with the largest entry; ``None``: another one, or the entries are NaN."""
        place = max(range(self.width), key=lambda number: entries[number])
        return self.levels[place] if place < len(self.levels) and entries[place] == entries[place] else None


Column: TypeAlias = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class RowEncoding:
    """The columns of a table, in the order of their entries in a row."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """Entries F of a row."""
        return sum(column.width for column in self.columns)

    @cached_property
    def entries(self) -> tuple[slice, ...]:
        """The entries of each column."""
        ends = list(accumulate(column.width for column in self.columns))
        return tuple(slice(end - column.width, end) for column, end in zip(self.columns, ends, strict=True))

    @cached_property
    def numbers(self) -> Tensor:
        """Indices of the entries that hold a number ``(numbers,)``."""
        places = [at.start for column, at in zip(self.columns, self.entries, strict=True) if isinstance(column, NumberColumn)]
        return torch.tensor(places, dtype=torch.long)

    @cached_property
    def gaps(self) -> Tensor:
        """Indices of the entries that say that a number is missing."""
        pairs = zip(self.columns, self.entries, strict=True)
        places = [at.stop - 1 for column, at in pairs if isinstance(column, NumberColumn) and column.gaps]
        return torch.tensor(places, dtype=torch.long)

    @property
    def categories(self) -> tuple[slice, ...]:
        """The entries of each category."""
        pairs = zip(self.columns, self.entries, strict=True)
        return tuple(at for column, at in pairs if isinstance(column, CategoryColumn))

    def encode(self, rows: Sequence[Sequence[Cell]]) -> Tensor:
        """Cells of ``n`` rows -> ``(n, F)``.

        Raises:
            ValueError: a cell does not fit its column.
        """
        pairs = [[column.encode(cell) for column, cell in zip(self.columns, row, strict=True)] for row in rows]
        return torch.tensor([[entry for entries in row for entry in entries] for row in pairs]).view(len(rows), self.width)

    def decode(self, rows: Tensor) -> list[tuple[Cell, ...]]:
        """The cells of rows ``(n, F)``, which need not be exact: categories are those with the largest entry."""
        pairs = list(zip(self.columns, self.entries, strict=True))
        return [tuple(column.decode(row[at]) for column, at in pairs) for row in rows.tolist()]

    def project(self, rows: Tensor) -> Tensor:
        """The nearest valid rows ``(..., F)``, which encode what :meth:`decode` reads: categories one-hot, gaps 0 or 1."""
        nearest = rows.clone()
        for at in self.categories:
            nearest[..., at] = torch.nn.functional.one_hot(rows[..., at].argmax(-1), at.stop - at.start).to(rows)
        missing = rows[..., self.gaps] > 0.5
        nearest[..., self.gaps] = missing.to(rows)
        nearest[..., self.gaps - 1] = rows[..., self.gaps - 1].masked_fill(missing, 0.0)
        return nearest

    def valid(self, rows: Tensor, slack: Tensor | float) -> Tensor:
        """Which entries of rows ``(n, F)`` are near enough to one that a cell can have ``(n, F)``.

        Those of categories must be nearly one-hot, and those of gaps nearly 0 or 1. Numbers must be finite, within their range
        where it is known, and nearly 0 where the row says that they are missing.

        Args:
            slack: the largest distance, ``(n, 1)`` or a number.
        """
        fits = ((rows - self.project(rows)).abs() <= slack) & rows.isfinite()
        for column, at in zip(self.columns, self.entries, strict=True):
            if isinstance(column, NumberColumn):
                number = slice(at.start, at.start + 1)
                cells, margin = rows[:, number] * column.std + column.mean, slack * column.std
                if column.low is not None:
                    fits[:, number] &= cells >= column.low - margin
                if column.high is not None:
                    fits[:, number] &= cells <= column.high + margin
        return fits


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
