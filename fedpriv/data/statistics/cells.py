"""The cells of a table as they were read, before clients have sent the statistics by which they are scaled and coded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.encoding import Column, Entries, NumberColumn, level_of
from fedpriv.errors import UsageError
from fedpriv.untrusted.names import first_few

Indices: TypeAlias = NDArray[np.int64]
ColumnKind = Literal["number", "category", "empty"]


@dataclass(frozen=True, eq=False)
class _Values:
    """A column's values of training and test rows."""

    name: str
    train: NDArray[Any]
    test: NDArray[Any]

    def at(self, train: Indices, test: Indices) -> Self:
        """The values of some rows."""
        return replace(self, train=self.train[train], test=self.test[test])


@dataclass(frozen=True, eq=False)
class NumberCells(_Values):
    """A column of numbers, training and test rows, each ``(N,)``, NaN where one is missing.

    Attributes:
        left_out: why it would be no feature by these rows alone; empty: it is one.
    """

    train: Entries
    test: Entries
    unit: str = ""
    left_out: str = ""
    kind: ColumnKind = "number"


@dataclass(frozen=True, eq=False)
class CategoryCells(_Values):
    """A column of categories.

    Attributes:
        train, test: the number of each row's level ``(N,)``.
        levels: of all rows; a missing value is the level ``""``.
        left_out: as of numbers.
    """

    train: Indices
    test: Indices
    levels: tuple[str, ...]
    left_out: str = ""
    kind: ColumnKind = "category"
    unit: str = ""

    @classmethod
    def of(cls, name: str, train: Sequence[object], test: Sequence[object], left_out: str = "") -> CategoryCells:
        """The cells with these values."""
        texts = [level_of(value) for values in (train, test) for value in values]
        levels, numbers = np.unique(np.array(texts, dtype=object), return_inverse=True)
        numbers = numbers.astype(np.int64)
        return cls(name, numbers[: len(train)], numbers[len(train) :], tuple(levels.tolist()), left_out)

    def counts(self, rows: Indices) -> dict[str, int]:
        """How many of some training rows have each level that one of them has."""
        numbers = np.bincount(self.train[rows], minlength=len(self.levels))
        return {level: count for level, count in zip(self.levels, numbers.tolist(), strict=True) if count}


@dataclass(frozen=True, eq=False)
class EmptyCells(_Values):
    """A column without a value in any row, training and test rows, each ``(N,)``, NaN; another client may have some."""

    train: Entries
    test: Entries
    left_out: str = ""
    kind: ColumnKind = "empty"
    unit: str = ""

    @property
    def numbers(self) -> NumberCells:
        """The column as numbers, all missing."""
        return NumberCells(self.name, self.train, self.test)

    @property
    def categories(self) -> CategoryCells:
        """The column as categories, all missing."""
        return CategoryCells(self.name, np.zeros(len(self.train), np.int64), np.zeros(len(self.test), np.int64), ("",))


@dataclass(frozen=True, eq=False)
class ArrayCells(_Values):
    """A column of arrays, such as time series, training and test rows, each ``(N, C, ...)``."""

    train: NDArray[np.floating[Any]]
    test: NDArray[np.floating[Any]]


TableCells: TypeAlias = NumberCells | CategoryCells | EmptyCells
Cells: TypeAlias = TableCells | ArrayCells


def bytes_of_rows(cells: Sequence[Cells], split: Literal["train", "test"]) -> list[bytes]:
    """Bytes of each row, which are the same for rows with equal cells."""
    columns: list[NDArray[Any]] = [getattr(column, split) for column in cells]
    return [b"".join(cell.tobytes() for cell in row) for row in zip(*columns, strict=True)]


def encoded_cells(cells: Sequence[Cells], columns: Sequence[Column], split: Literal["train", "test"]) -> NDArray[np.float32]:
    """The rows ``(N, F)`` of a table as its columns encode them.

    Raises:
        UsageError: the table lacks a column, or has one of another kind.
    """
    by_name, parts = {column.name: column for column in cells}, list[Entries]()
    for column in columns:
        if isinstance(column, NumberColumn):
            parts.append(column.encode(getattr(numbers_in(by_name, column.name), split)))
            continue
        held = categories_in(by_name, column.name)
        place = {level: number for number, level in enumerate(column.levels)}
        entries = np.array([place.get(level, len(column.levels)) for level in held.levels], dtype=np.int64)
        parts.append(np.eye(column.width)[entries[getattr(held, split)]])
    return np.concatenate(parts, axis=1).astype(np.float32)


def numbers_in(cells: Mapping[str, Cells], name: str) -> NumberCells:
    """A column of numbers, by name.

    Raises:
        UsageError: it is not there, or holds something else.
    """
    held = cells.get(name)
    if isinstance(held, EmptyCells):
        return held.numbers
    if not isinstance(held, NumberCells):
        raise UsageError(f"column {name!r} should hold numbers, and {'is missing' if held is None else 'does not'}")
    return held


def categories_in(cells: Mapping[str, Cells], name: str) -> CategoryCells:
    """A column of categories, by name; errors as of :func:`numbers_in`."""
    held = cells.get(name)
    if isinstance(held, EmptyCells):
        return held.categories
    if not isinstance(held, CategoryCells):
        raise UsageError(f"column {name!r} should hold categories, and {'is missing' if held is None else 'does not'}")
    return held


def unseen_levels(cells: Sequence[Cells], rows: Indices) -> list[str]:
    """A line for each column whose test rows have levels that no training row has.

    Args:
        rows: of all clients' training rows.
    """
    lines = []
    for column in cells:
        if isinstance(column, CategoryCells):
            known = np.unique(column.train[rows])
            if (strange := np.setdiff1d(column.test, known)).size:
                count, names = int(np.isin(column.test, strange).sum()), [repr(column.levels[number]) for number in strange]
                lines.append(
                    f"column {column.name!r}: {count:,} test rows have a level that no training row has ({first_few(names, 5)}); "
                    "it is read as all other levels are"
                )
    return lines
