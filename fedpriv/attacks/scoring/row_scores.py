"""Scores of reconstructed rows of a table ``raw`` against the ``true`` ones, both ``(n, F)`` as the net takes them.

A cell is right where the category is the true one, or the number lies within :data:`TOLERANCE` deviations of the true one (Vero
et al., TabLeak, ICML 2023, section 5). A missing number must be recovered as missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom
from torch import Tensor

from fedpriv.attacks.core.columns import CategoryColumn, RowEncoding
from fedpriv.attacks.scoring.scores import Rate, right_labels, wilson

TOLERANCE = 0.319
"""Largest error of a right number, in deviations of its column. A quarter of normally distributed numbers are as near to their
mean."""
BY_CHANCE = 0.01
"""Rows, and cells, count as recovered where they are right by chance with at most this probability."""


@dataclass(frozen=True)
class RowScores:
    """Scores of ``n`` rows of ``K`` cells each.

    Attributes:
        hits: which cells are right ``(n, K)``.
        columns: the names of the columns.
        labels: how many labels are right; ``None`` where the attack guesses none.
    """

    hits: Tensor
    columns: tuple[str, ...]
    labels: Rate | None = None

    @property
    def cells(self) -> Rate:
        """How many cells are right; the interval is as if cells were independent."""
        return wilson(int(self.hits.sum()), self.hits.numel())

    @property
    def rows(self) -> Rate:
        """How many rows have all cells right."""
        return wilson(int(self.hits.all(1).sum()), len(self.hits))

    @property
    def by_column(self) -> dict[str, Rate]:
        """How many cells of each column are right."""
        counts = self.hits.sum(0).tolist()
        return {name: wilson(count, len(self.hits)) for name, count in zip(self.columns, counts, strict=True)}


def right_cells(raw: Tensor, true: Tensor, encoding: RowEncoding) -> Tensor:
    """Which cells are right ``(..., K)``, of rows ``(..., F)`` that may be broadcast; none of a row that has NaN in the cell."""
    shape = torch.broadcast_shapes(raw.shape, true.shape)  # type: ignore[no-untyped-call]
    raw, true = raw.expand(shape), true.expand(shape)
    hits = []
    for column, at in zip(encoding.columns, encoding.entries, strict=True):
        guess, truth = raw[..., at], true[..., at]
        if isinstance(column, CategoryColumn):
            right = guess.argmax(-1) == truth.argmax(-1)
        else:
            right = (guess[..., 0] - truth[..., 0]).abs() <= TOLERANCE
            if column.gaps:
                missing, is_missing = guess[..., 1] > 0.5, truth[..., 1] > 0.5
                right = (missing & is_missing) | (right & ~missing & ~is_missing)
        hits.append(right & ~guess.isnan().any(-1))
    return torch.stack(hits, -1)


def match_rows(raw: Tensor, true: Tensor, encoding: RowEncoding) -> Tensor:
    """Match the rows of one message, whose order a gradient does not determine, so that most cells are right.

    Returns:
        the index in ``raw`` ``(m, F)`` for each of ``true`` ``(n, F)``; -1 where there are fewer of ``raw``.
    """
    hits = right_cells(raw[None], true[:, None], encoding).sum(-1)
    rows, columns = linear_sum_assignment(hits.cpu().numpy(), maximize=True)
    index = torch.full((len(true),), -1)
    index[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return index


def in_order(raw: Tensor, true: Tensor, encoding: RowEncoding, messages: int) -> tuple[Tensor, Tensor]:
    """The rows of ``messages`` messages matched to the true ones within each (:func:`match_rows`).

    Each message stands for as many true rows, and has as many reconstructed ones, as every other.

    Returns:
        rows ``(n, F)``, NaN for those without a partner, and their indices in ``raw`` ``(n,)``, or -1.
    """
    size, shown = len(true) // messages, len(raw) // messages
    parts = []
    for number, (guesses, rows) in enumerate(zip(raw.view(messages, shown, -1), true.view(messages, size, -1), strict=True)):
        index = match_rows(guesses, rows, encoding)
        parts.append(torch.where(index < 0, index, index + number * shown))
    index = torch.cat(parts)
    padded = torch.cat([raw, raw.new_full((1, raw.shape[1]), torch.nan)])
    return padded[index], index


def score_rows(
    raw: Tensor, true: Tensor, encoding: RowEncoding, guessed: Tensor | None = None, labels: Tensor | None = None
) -> RowScores:
    """All scores; rows of one message must first be put in order (:func:`in_order`)."""
    names = tuple(column.name for column in encoding.columns)
    return RowScores(right_cells(raw, true, encoding), names, right_labels(guessed, labels))


def sure_rows(raw: Tensor, shown: Tensor, true: Tensor, others: Tensor, encoding: RowEncoding, messages: int) -> Tensor:
    """Which rows are right in every cell, and hardly by chance ``(n,)``.

    ``others`` show how often rows are right by chance: a message that says nothing of its own rows is as near to these. There
    are two tests. Either more rows are right than chance explains (binomial), and all of them count; or a row counts whose
    numbers are so near to the true ones that chance hardly makes one of ``n`` rows as near (:func:`_nearer`). If all rows of a
    target are right, they count without a test: few rows with few cells could not pass one.

    Args:
        raw: the rows that an attack shows ``(m, F)``, as many for each message.
        shown: those in the order of the true ones ``(n, F)`` (:func:`in_order`).
        others: rows of the same table that are behind no message ``(o, F)``.
    """
    whole = right_cells(shown, true, encoding).all(1)
    if not whole.any() or whole.all():
        return whole
    by_message = raw.view(messages, len(raw) // messages, -1)
    alike = sum(int(torch.stack([right_cells(row, others, encoding).all(1) for row in rows]).any(0).sum()) for rows in by_message)
    chance = (alike + 1) / (messages * len(others) + 1)
    if binom.sf(int(whole.sum()) - 1, len(true), min(chance, 1.0)) <= BY_CHANCE:
        return whole
    nearer = [_nearer(row, truth, others, encoding) for row, truth in zip(shown[whole], true[whole], strict=True)]
    sure = whole.clone()
    sure[whole] = torch.tensor([len(true) * chance * share <= BY_CHANCE for share in nearer]).to(sure)
    return sure


def _nearer(row: Tensor, true: Tensor, others: Tensor, encoding: RowEncoding) -> float:
    """The chance that a row which is right within the tolerance is by luck as near to this row ``(F,)`` as the true one is.

    It is the product over the columns of numbers. In each, a number is as likely anywhere within the tolerance, but takes steps:
    the smallest difference between two numbers of the column. Numbers that many rows share are as likely as they are frequent
    among the others. Columns that determine each other count once: the product is reduced to the number of directions in which
    the others vary by more than the tolerance.
    """
    there = [
        at.start
        for column, at in zip(encoding.columns, encoding.entries, strict=True)
        if not isinstance(column, CategoryColumn) and not (column.gaps and row[at.stop - 1] > 0.5)
    ]
    if not there:
        return 1.0
    share, largest = 1.0, float((row - true)[there].abs().max())
    for at in there:
        values, distances = torch.cat([others[:, at], true[at : at + 1]]).sort().values, (others[:, at] - row[at]).abs()
        steps = values.diff()
        steps = steps[steps > 0]
        step = float(steps.min()) if len(steps) else torch.inf
        alike = int((distances <= largest).sum()) / max(1, int((distances <= TOLERANCE).sum()))
        share *= max(alike, min(1.0, max(largest, step / 2) / TOLERANCE))
    spread = torch.linalg.eigvalsh(torch.cov(others[:, there].T.double(), correction=0).view(len(there), -1))
    return float(share ** (int((spread > TOLERANCE**2).sum()) / len(there)))


def typical_row(encoding: RowEncoding) -> Tensor:
    """The baseline without a message ``(F,)``: the mean of each number, and the most frequent level of each category."""
    row = torch.zeros(encoding.width)
    row[[at.start for at in encoding.categories]] = 1.0
    return row
