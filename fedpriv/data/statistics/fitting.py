"""From statistics of training rows to the encoding of all rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fedpriv.data.encoding import MOST_LEVELS, CategoryColumn, Column, Encoding, NumberColumn
from fedpriv.data.statistics.cells import ArrayCells, Cells, ColumnKind
from fedpriv.data.statistics.totals import Inquiry, Totals
from fedpriv.errors import UsageError

Levels: TypeAlias = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class ColumnForm:
    """A column of a table, as its cells were read.

    Attributes:
        unit: with which its numbers are written; ``None``: plainly.
        left_out: why it would be no feature by these rows alone; ``None``: it is one.
    """

    name: str
    kind: ColumnKind
    unit: str | None = None
    left_out: str | None = None


@dataclass(frozen=True)
class SampleKind:
    """The kind of the samples; the statistics by which they can be scaled and coded follow from it.

    Attributes:
        columns: of a table.
        channels: of images, or of arrays.
        images: whether the samples are images.
        arrays: the column of the arrays.
        target: of a regression, the column of the labels.
    """

    columns: tuple[ColumnForm, ...] = ()
    channels: int = 0
    images: bool = False
    arrays: str | None = None
    target: ColumnForm | None = None

    @classmethod
    def of_cells(cls, cells: Sequence[Cells], target: NumberColumn | None = None) -> SampleKind:
        """The kind of the samples in a table, or of arrays.

        Args:
            target: of a regression, the column of the labels.
        """
        label = None if target is None else ColumnForm(target.name, "number", target.unit)
        if isinstance(arrays := cells[0], ArrayCells):
            return cls((), arrays.train.shape[1], arrays=arrays.name, target=label)
        columns = (column for column in cells if not isinstance(column, ArrayCells))
        return cls(
            tuple(ColumnForm(column.name, column.kind, column.unit or None, column.left_out or None) for column in columns),
            target=label,
        )

    @property
    def labels(self) -> tuple[ColumnForm, ...]:
        """The column of the labels, if they are numbers."""
        return () if self.target is None else (self.target,)

    def undeclared(self, declared: Levels) -> tuple[str, ...]:
        """The columns of categories whose levels are not declared."""
        return tuple(column.name for column in self.columns if column.kind == "category" and column.name not in declared)

    def inquiry(self, levels: Mapping[str, Collection[str]], classes: int = 0) -> Inquiry:
        """The statistics that are asked of every client.

        Args:
            levels: those that any client names, of the columns without declared ones.
            classes: number of classes whose samples are counted.
        """
        numbers = tuple(column.name for column in (*self.columns, *self.labels) if column.kind == "number")
        return Inquiry(numbers, tuple((name, tuple(sorted(named))) for name, named in levels.items()), self.channels, classes)

    def encoding(self, inquiry: Inquiry, totals: Totals, declared: Levels) -> Encoding:
        """The encoding that follows from the statistics of all clients.

        Raises:
            UsageError: there is no number in some column, or labels are numbers and all equal.
        """
        moments = dict(zip(inquiry.numbers, totals.moments, strict=False))
        counts = {name: (levels, held) for (name, levels), held in zip(inquiry.levels, totals.levels, strict=True)}
        columns, target = list[Column](), None
        for column in self.columns:
            name = column.name
            if column.kind == "category":
                levels = _most_frequent(*counts[name]) if name in counts else declared[name]
                columns.append(CategoryColumn(name, levels))
                continue
            if not moments[name].count:
                raise UsageError(f"no training row has a number in column {name!r}; leave it out: --set data.drop=[{name}]")
            gaps = moments[name].count < totals.rows
            columns.append(NumberColumn(name, moments[name].mean, moments[name].deviation or 1.0, gaps, column.unit))
        if self.target is not None:
            name, of_labels = self.target.name, moments[self.target.name]
            if not of_labels.deviation:
                raise UsageError(
                    f"all training rows have the label {of_labels.mean:g}, so there is nothing to predict; "
                    "--set data.label=NAME names another column"
                )
            target = NumberColumn(name, of_labels.mean, of_labels.deviation, unit=self.target.unit)
        channels = totals.moments[len(inquiry.numbers) :]
        mean, std = (tuple(channel.mean for channel in channels), tuple(channel.deviation for channel in channels))
        if self.images:  # to four digits, on the [0, 1] scale
            mean, std = (tuple(round(number / 255, 4) for number in numbers) for numbers in (mean, std))
        return Encoding(tuple(columns), mean, tuple(number or 1.0 for number in std), totals.classes, target)


def _most_frequent(levels: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
    """The levels that have an entry of their own, the most frequent first.

    Args:
        counts: of the rows with each level, and a last one, with any other.
    """
    held = {level: count for level, count in zip(levels, counts, strict=False) if count}
    return tuple(sorted(held, key=lambda level: (-held[level], level))[:MOST_LEVELS])
