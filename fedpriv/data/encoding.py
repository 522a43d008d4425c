"""How the cells of a table become the numbers that a net takes, column by column, and back.

A number becomes ``(x - mean) / std``. A missing one becomes 0, the mean; a column that misses any in the training rows gets a
second entry, which is 1 where the number is missing. A category becomes one-hot: an entry for each of its levels, and one for all
others.
"""

from __future__ import annotations

from collections import Counter
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
        unit: as in :class:`fedpriv.data.user_data.numbers.Numbers`.
    """

    name: str
    mean: float
    std: float
    gaps: bool = False
    unit: str = ""

    @classmethod
    def fit(cls, name: str, values: Entries, unit: str = "") -> NumberColumn:
        """The column of training numbers ``(N,)``, NaN where one is missing."""
        # Of equal numbers, the rounded mean leaves a deviation of about 1e-17, over which another number would be enormous.
        constant = np.nanmin(values) == np.nanmax(values)
        mean, std = (np.nanmin(values), 1.0) if constant else (np.nanmean(values), np.nanstd(values))
        return cls(name, float(mean), float(std), bool(np.isnan(values).any()), unit)

    @property
    def width(self) -> int:
        """Entries of a row."""
        return 2 if self.gaps else 1

    def encode(self, values: Entries) -> Entries:
        """Numbers ``(N,)`` -> ``(N, width)``."""
        standardised = np.nan_to_num((values - self.mean) / self.std, nan=0.0)[:, None]
        return np.concatenate([standardised, np.isnan(values)[:, None]], axis=1) if self.gaps else standardised


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes:
        levels: those that have an entry of their own; a missing value is the level ``""``.
    """

    name: str
    levels: tuple[str, ...]

    @classmethod
    def fit(cls, name: str, values: Sequence[object]) -> CategoryColumn:
        """The column of training values ``(N,)``: its most frequent levels."""
        counts = Counter(map(_level, values))
        return cls(name, tuple(sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS]))

    @property
    def width(self) -> int:
        """Entries of a row."""
        return len(self.levels) + 1

    def encode(self, values: Sequence[object]) -> Entries:
        """Values ``(N,)`` -> ``(N, width)``."""
        place = {level: number for number, level in enumerate(self.levels)}
        return np.eye(self.width)[[place.get(_level(value), len(self.levels)) for value in values]]


Column: TypeAlias = NumberColumn | CategoryColumn


def _level(value: object) -> str:
    return str(value if value is not None else "")
