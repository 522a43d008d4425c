"""Results of attacks on rows of a table, and on hidden values of single columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.results.outcome import Interval, Outcome, Sender, Target


@dataclass(frozen=True, kw_only=True)
class RowRates:
    """How many cells of a table are right, and how many rows in every cell."""

    cells: Rate
    rows: Rate


@dataclass(frozen=True)
class CellExample:
    """A cell of an example row, decoded; ``guessed``: the column's most frequent value."""

    column: str
    true: str
    recovered: str
    guessed: str
    right: bool


@dataclass(frozen=True)
class RowExample:
    """A row and its reconstruction, cell by cell; ``right``: how many cells are right."""

    cells: tuple[CellExample, ...]

    @property
    def right(self) -> int:
        """How many cells are right."""
        return sum(cell.right for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class RowFigures(RowRates):
    """The figures of an attack on rows of a table.

    Attributes:
        numbers, categories: the cells of either kind of column; ``None``: the table has none.
        labels: ``None``: it guesses no labels.
        sure: the rows that are right in every cell, and hardly by chance (:func:`fedpriv.attacks.scoring.row_scores.sure_rows`).
        by_chance: the probability that guesses are right in as many cells, row by row; see :mod:`fedpriv.audit.rows.figures`.
        example: the row that it recovered best.
    """

    numbers: Rate | None
    categories: Rate | None
    labels: Rate | None
    sure: Rate
    by_chance: float
    example: RowExample
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class RowOutcome(Outcome):
    """An attack on rows of a table; ``figures``: ``None``: it was not run."""

    figures: RowFigures | None = None


@dataclass(frozen=True, kw_only=True)
class RowTarget(Target):
    """Attacked rows of a table.

    Attributes:
        columns: their number.
        baselines: guesses made without the message, by name.
    """

    outcomes: tuple[RowOutcome, ...]
    columns: int
    baselines: Mapping[str, RowRates]


@dataclass(frozen=True, kw_only=True)
class AttributeFigures:
    """How many hidden values of a column were named by an attack on a message, and by the other columns alone.

    Attributes:
        right: with the message; ``guessed``: without it, by the same attacker on the same rows.
        gained, lost: rows that are right only with the message, and only without it.
        together: the interval of :attr:`advantage` that holds for all columns of all messages at once.
    """

    right: Rate
    guessed: Rate
    gained: int
    lost: int
    together: Interval
    cpu_seconds: float

    @property
    def advantage(self) -> float:
        """The difference of the two shares."""
        return self.right.share - self.guessed.share


@dataclass(frozen=True, kw_only=True)
class AttributeOutcome(Outcome):
    """Attribute inference of one column from one message.

    Attributes:
        values: how many values the column has; for a column of numbers, how many ranges.
        figures: ``None``: it was not run.
    """

    round: int
    sender: Sender
    column: str
    values: int
    figures: AttributeFigures | None = None
