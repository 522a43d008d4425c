"""The values of a hidden column between which attribute inference chooses, and what the other columns tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.core.columns import NumberColumn, RowEncoding
from fedpriv.attacks.core.labels import groups, targets

RANGES = 5
"""Ranges of a column of numbers, each of about as many rows; the attack tries the median of each."""


@dataclass(frozen=True)
class Labelled:
    """Rows ``(n, F)`` as the net takes them, with labels ``(n,)``."""

    rows: Tensor
    labels: Tensor

    def at(self, index: Tensor | slice) -> Labelled:
        """Some of them."""
        return Labelled(self.rows[index], self.labels[index])

    def beside(self, others: Labelled) -> Labelled:
        """These and others."""
        return Labelled(torch.cat([self.rows, others.rows]), torch.cat([self.labels, others.labels]))


@dataclass(frozen=True)
class Choices:
    """The values of a column.

    Attributes:
        at: the column's entries in a row.
        entries: of each value ``(V, width)``.
        edges: of the ranges of numbers ``(V - 1,)``, where there are ranges; ``None`` for categories.
        missing: whether the last value is that a number is missing.
    """

    column: str
    at: slice
    entries: Tensor
    edges: Tensor | None = None
    missing: bool = False

    def of(self, rows: Tensor) -> Tensor:
        """The value of each row ``(n,)``; -1 for a level that is none of them."""
        cells = rows[:, self.at]
        if self.edges is None:
            same = (cells[:, None] - self.entries.to(cells)).abs().amax(2) < 0.5
            return torch.where(same.any(1), same.long().argmax(1), -1)
        places = torch.bucketize(cells[:, 0].contiguous(), self.edges.to(cells), right=True)
        return torch.where(cells[:, 1] > 0.5, len(self.entries) - 1, places) if self.missing else places

    def completed(self, rows: Tensor) -> Tensor:
        """Each row with each value ``(n * V, F)``, row by row."""
        every = rows[:, None].repeat(1, len(self.entries), 1)
        every[:, :, self.at] = self.entries.to(rows)
        return every.flatten(0, 1)

    def others(self, rows: Tensor) -> Tensor:
        """The rows without the column ``(n, F - width)``."""
        return torch.cat([rows[:, : self.at.start], rows[:, self.at.stop :]], 1)


def choices_of(encoding: RowEncoding, rows: Tensor) -> Iterator[Choices]:
    """The columns of which rows ``(m, F)`` of the attacker's own have several values: the levels of categories, and ranges of
    numbers."""
    for column, at in zip(encoding.columns, encoding.entries, strict=True):
        cells = rows[:, at]
        if not isinstance(column, NumberColumn):
            values = Choices(column.name, at, torch.unique(cells, dim=0).flip(0))
        else:
            values = _ranges(column, at, cells)
        if len(values.entries) > 1:
            yield values


def _ranges(column: NumberColumn, at: slice, cells: Tensor) -> Choices:
    there = (cells[cells[:, 1] <= 0.5, 0] if column.gaps else cells[:, 0]).contiguous()
    missing = len(there) < len(cells)
    numbers = torch.unique(there)
    if len(numbers) > RANGES:
        quantiles = torch.linspace(0, 1, RANGES + 1).to(there)[1:-1]
        edges = torch.unique(torch.quantile(there, quantiles))
    else:
        edges = (numbers[1:] + numbers[:-1]) / 2
    place = torch.bucketize(there, edges, right=True)
    held = [there[place == number].median() for number in range(len(edges) + 1) if bool((place == number).any())]
    if len(held) <= len(edges):  # the lowest number is an edge
        edges = edges[len(edges) + 1 - len(held) :]
    entries = torch.zeros(len(held) + missing, column.width).to(cells)
    if held:
        entries[: len(held), 0] = torch.stack(held)
    if missing:
        entries[-1, 1] = 1.0
    return Choices(column.name, at, entries, edges, missing)


def told_by_others(choices: Choices, known: Labelled, asked: Labelled) -> Tensor:
    """How likely each value of the asked rows is, given their other columns and labels ``(n, V)``: logistic regression on known
    rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = int(max(groups(some.labels).max() for some in (known, asked))) + 1

    def features(of: Labelled) -> np.ndarray[Any, Any]:
        others = choices.others(of.rows)
        return torch.cat([others, targets(of.labels, classes, others.dtype).view(len(others), -1)], 1).double().numpy()

    values, count = choices.of(known.rows), len(asked.rows)
    kept = values >= 0
    if len(torch.unique(values[kept])) == 1:  # of the client's remaining rows, perhaps
        return torch.nn.functional.one_hot(values[kept][:1], len(choices.entries)).double().expand(count, -1)
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    fitted.fit(features(known)[kept.numpy()], values[kept].numpy())
    probabilities = torch.zeros(count, len(choices.entries), dtype=torch.double)
    probabilities[:, torch.from_numpy(fitted.classes_)] = torch.from_numpy(fitted.predict_proba(features(asked)))
    return probabilities
