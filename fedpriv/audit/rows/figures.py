"""The figures of attempts on rows of a table, and an example."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy.stats import binom, wilcoxon
from torch import Tensor

from fedpriv.attacks.core.columns import Cell, NumberColumn, RowEncoding
from fedpriv.attacks.lab.row_attempts import RowAttempt
from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.results.rows import CellExample, RowExample, RowFigures, RowRates

FEW_ROWS = 7
"""Of fewer rows, the signs of their differences from a guess could not be significant; their cells are then counted."""


def row_figures(
    attempt: RowAttempt, rows: Tensor, encoding: RowEncoding, guesses: Mapping[str, Tensor], constant: Tensor
) -> RowFigures | None:
    """The figures of an attempt on rows ``(n, F)``; ``None``: it was not mounted.

    Args:
        guesses: which cells guesses have right ``(n, K)``, by name.
        constant: the row of most frequent values ``(F,)``.
    """
    scores, result, sure = attempt.scores, attempt.reconstruction, attempt.sure
    if scores is None or result is None or attempt.raw is None or sure is None:
        return None
    n = len(scores.hits)
    numeric = torch.tensor([isinstance(column, NumberColumn) for column in encoding.columns])
    rates = rates_of(scores.hits)
    return RowFigures(
        cells=rates.cells,
        rows=rates.rows,
        numbers=_rate(scores.hits[:, numeric]),
        categories=_rate(scores.hits[:, ~numeric]),
        labels=scores.labels,
        sure=sure,
        by_chance=by_chance(scores.hits, {name: hits[:n] for name, hits in guesses.items()}),
        example=example(attempt.raw, rows[:n], scores.hits, encoding, constant),
        cpu_seconds=result.cpu_seconds,
    )


def rates_of(hits: Tensor) -> RowRates:
    """The rates of right cells ``(n, K)``, and of rows."""
    return RowRates(cells=wilson(int(hits.sum()), hits.numel()), rows=wilson(whole_rows(hits), len(hits)))


def whole_rows(hits: Tensor) -> int:
    """How many rows are right in every cell ``(n, K)``."""
    return int(hits.all(1).sum())


def _rate(hits: Tensor) -> Rate | None:
    return wilson(int(hits.sum()), hits.numel()) if hits.numel() else None


def by_chance(hits: Tensor, guesses: Mapping[str, Tensor]) -> float:
    """The probability that the best guess is right in as many cells ``(n, K)`` as an attack, were they equally good.

    Cells of a row depend on each other, so rows are compared: the signed ranks of their differences in right cells (Wilcoxon).
    Of less than :data:`FEW_ROWS` rows, the cells are compared with the guess's share (binomial).
    """
    best = max(guesses.values(), key=lambda guess: int(guess.sum()))
    differences = (hits.sum(1) - best.sum(1)).numpy().astype(np.float64)
    if not (differences > 0).any():
        return 1.0
    if len(hits) < FEW_ROWS:
        return float(binom.sf(int(hits.sum()) - 1, hits.numel(), float(best.double().mean())))
    return float(wilcoxon(differences, alternative="greater").pvalue)


def example(raw: Tensor, true: Tensor, hits: Tensor, encoding: RowEncoding, constant: Tensor) -> RowExample:
    """The row with most right cells, cell by cell, beside the most frequent values."""
    at = int(hits.sum(1).argmax())
    decoded = (encoding.decode(row[None].cpu())[0] for row in (true[at], raw[at], constant))
    rows = zip(encoding.columns, *decoded, hits[at].tolist(), strict=True)
    return RowExample(
        tuple(
            CellExample(column.name, written(column, truth), written(column, recovered), written(column, guess), bool(right))
            for column, truth, recovered, guess, right in rows
        )
    )


def written(column: object, cell: Cell) -> str:
    """A cell as readers see it."""
    if isinstance(cell, float | int):
        spread = column.std if isinstance(column, NumberColumn) and column.std > 0 else 1.0
        return f"{round(cell, 3 - math.floor(math.log10(spread))) + 0.0:.4g}"  # what rounding to float32 leaves of 0 is 0
    if cell is None:
        return "missing" if isinstance(column, NumberColumn) else "another level"
    return cell or "missing"
