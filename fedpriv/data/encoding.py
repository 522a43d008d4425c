"""How the cells of a table become the numbers that a net takes, column by column, and back.

A number becomes ``(x - mean) / std``. A missing one becomes 0, the mean; a column that misses any in the training rows gets a
second entry, which is 1 where the number is missing. A category becomes one-hot: an entry for each of its levels, and one for all
others. Means, deviations and levels come from statistics of the clients' training rows (:mod:`fedpriv.data.statistics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Entries: TypeAlias = NDArray[np.float64]
MOST_LEVELS = 20
"""Levels of a category that have an entry of their own, the most frequent ones."""


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        mean, std: by which the numbers are standardised; of equal numbers, the deviation is 1.
        gaps: whether there is an entry that says that a number is missing.
        unit: with which the numbers are written; ``None``: plainly.
    """

    name: str
    mean: float
    std: float
    gaps: bool = False
    unit: str | None = None

    @property
    def width(self) -> int:
        """Entries of a row."""
        return 2 if self.gaps else 1

    def encode(self, values: Entries) -> Entries:
        """Numbers ``(N,)`` -> ``(N, width)``."""
        standardised = np.nan_to_num((values - self.mean) / self.std, nan=0.0)[:, None]
        return np.concatenate([standardised, np.isnan(values)[:, None]], axis=1) if self.gaps else standardised

    def decode(self, standardised: Entries) -> Entries:
        """Standardised numbers in the column's unit, in the same shape."""
        return standardised * self.std + self.mean


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes:
        levels: those that have an entry of their own; a missing value is the level ``""``.
    """

    name: str
    levels: tuple[str, ...]

    @property
    def width(self) -> int:
        """Entries of a row."""
        return len(self.levels) + 1

    def encode(self, values: Sequence[object]) -> Entries:
        """Values ``(N,)`` -> ``(N, width)``."""
        place = {level: number for number, level in enumerate(self.levels)}
        return np.eye(self.width)[[place.get(level_of(value), len(self.levels)) for value in values]]


Column: TypeAlias = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class Encoding:
    """The numbers and levels by which samples are scaled and coded.

    Attributes:
        columns: of the rows of a table; none: the samples are images or arrays.
        mean, std: of each channel of images, on the [0, 1] scale, or of arrays.
        classes: the number of training samples of each class; none: they were not counted.
        target: of a regression, the column of the labels.
    """

    columns: tuple[Column, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: tuple[int, ...] = ()
    target: NumberColumn | None = None


def level_of(value: object) -> str:
    """The level that a cell has; a whole number is written without a point, as 1.0 is 1."""
    if isinstance(value, float):
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return str(value if value is not None else "")
