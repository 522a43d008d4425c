"""Computes the scores of predictions, of many clients at a time.

Samples may have weights, which torchmetrics does not know; and one call for all clients costs about as much as one for a single
client. Tests compare with scikit-learn and torchmetrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.scores.catalogue import Scores
from fedpriv.scores.predictions import Predictions

BINS = 15
"""Bins of equal width in which the calibration error compares predicted probabilities with frequencies."""
_EDGES = np.linspace(0, 1, BINS + 1)

Floats = NDArray[np.float64]


def scored(clients: Sequence[Predictions], classes: int) -> list[Scores]:
    """The scores of each client, to the bit those of the client alone.

    Args:
        clients: the predictions of each, on one sample or more.
        classes: their number.
    """
    if not clients:
        return []
    samples = _Samples(clients)
    columns = {"accuracy": np.array([client.accuracy for client in clients])}
    columns["balanced_accuracy"], columns["f1_macro"] = samples.by_class(classes)
    if classes == 2:
        columns |= samples.of_two_classes()
    return [
        {name: float(values[client]) for name, values in columns.items() if np.isfinite(values[client])}
        for client in range(len(clients))
    ]


def scored_numbers(clients: Sequence[Predictions]) -> list[Scores]:
    """The scores of each client's predicted numbers, as scikit-learn has them; R2 is not defined where all labels are equal.

    Args:
        clients: the predictions of each, on one sample or more.
    """
    return [_of_numbers(client) for client in clients]


def _of_numbers(client: Predictions) -> Scores:
    weights = np.ones(len(client.labels)) if client.weights is None else client.weights
    errors = client.predicted - client.labels
    mse, mae = (float(np.average(part, weights=weights)) for part in (errors**2, np.abs(errors)))
    spread = float(np.average((client.labels - np.average(client.labels, weights=weights)) ** 2, weights=weights))
    values = {"rmse": mse**0.5, "mae": mae, "mse": mse}
    if np.ptp(client.labels):
        values["r2"] = 1 - mse / spread
    return {name: value for name, value in values.items() if np.isfinite(value)}


class _Samples:
    """The samples of all clients, one client after another.

    Sums are taken by numpy's ``bincount``, which adds up one sample after another: a client's sum does not depend on the others.
    """

    def __init__(self, clients: Sequence[Predictions]) -> None:
        self.clients, self.sizes = clients, [len(client.labels) for client in clients]
        self.owner = np.repeat(np.arange(len(clients)), self.sizes)
        self.labels = np.concatenate([client.labels for client in clients])
        self.predicted = np.concatenate([client.predicted for client in clients])
        weights = [
            np.ones(size) if client.weights is None else client.weights for client, size in zip(clients, self.sizes, strict=True)
        ]
        self.weights = np.concatenate(weights)

    def sums(self, values: Floats) -> Floats:
        """The sum over each client's samples."""
        return _totals(self.owner, values, len(self.clients))

    def by_class(self, classes: int) -> tuple[Floats, Floats]:
        """Balanced accuracy and macro F1 of each client, as scikit-learn has them.

        The former is the mean recall over the classes of the client's samples, the latter the mean F1 over the classes of its
        samples and of its predictions.
        """
        true, predicted = self.owner * classes + self.labels, self.owner * classes + self.predicted
        pairs, place = np.unique(np.concatenate([true, predicted]), return_inverse=True)
        true, predicted = place[: len(true)], place[len(true) :]
        support, named = (_totals(where, self.weights, len(pairs)) for where in (true, predicted))
        right = _totals(true, self.weights * (self.labels == self.predicted), len(pairs))
        owner, held = pairs // classes, support > 0

        def mean(values: Floats, counted: NDArray[np.bool_]) -> Floats:
            count = len(self.clients)
            return _ratio(_totals(owner, values, count), _totals(owner, counted, count))

        return mean(_ratio(right, support, 0.0), held), mean(_ratio(2 * right, support + named, 0.0), support + named > 0)

    def of_two_classes(self) -> dict[str, Floats]:
        """The scores that need a positive class, of each client; NaN where one is not defined."""
        positive = np.concatenate([client.positive for client in self.clients if client.positive is not None])
        truth = self.labels == 1
        total, held = self.sums(self.weights), self.sums(self.weights * truth)
        bins = np.clip(np.searchsorted(_EDGES, positive, side="right") - 1, 0, BINS - 1)
        gaps = np.abs(_totals(self.owner * BINS + bins, self.weights * (truth - positive), len(self.clients) * BINS))
        area, precision = self._by_threshold(positive, truth)
        spoiled = self.sums(np.isnan(positive)) > 0
        return {
            "roc_auc": np.where(spoiled, np.nan, area),
            "average_precision": np.where(spoiled, np.nan, precision),
            "recall": _ratio(self.sums(self.weights * (truth & (self.predicted == 1))), held),
            "brier": _ratio(self.sums(self.weights * (truth - positive) ** 2), total),
            "calibration_error": _ratio(gaps.reshape(-1, BINS).sum(1), total),
        }

    def _by_threshold(self, positive: Floats, truth: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Area under the ROC curve, and average precision, of each client; samples of equal probability are passed at once."""
        order, count = np.lexsort((-positive, self.owner)), len(self.clients)
        probability, owner = positive[order], self.owner[order]
        hits, misses = (self._running((self.weights * held)[order]) for held in (truth, ~truth))
        last = np.append((probability[1:] != probability[:-1]) | (owner[1:] != owner[:-1]), True)
        hits, misses, owner = hits[last], misses[last], owner[last]
        ends = np.flatnonzero(np.append(owner[1:] != owner[:-1], True))
        positives, negatives = hits[ends], misses[ends]
        hits_before, misses_before = (_before(values, ends) for values in (hits, misses))
        area = _totals(owner, (misses - misses_before) * (hits + hits_before) / 2, count)
        steps = _totals(owner, (hits - hits_before) * _ratio(hits, hits + misses, 0.0), count)
        return _ratio(area, positives * negatives), _ratio(steps, positives)

    def _running(self, values: Floats) -> Floats:
        """The running sum over each client's samples."""
        return np.concatenate([np.cumsum(values[part]) for part in self._parts()])

    def _parts(self) -> Iterator[slice]:
        start = 0
        for size in self.sizes:
            yield slice(start, start + size)
            start += size


def _totals(owner: NDArray[np.int64], values: NDArray[Any], count: int) -> Floats:
    """The sum of the values of each of ``count`` owners."""
    return np.asarray(np.bincount(owner, values, count), dtype=np.float64)


def _before(values: Floats, ends: NDArray[np.intp]) -> Floats:
    """The value before each one; 0 before the first of a client."""
    before = np.concatenate([[0.0], values[:-1]])
    before[ends[:-1] + 1] = 0.0
    return before


def _ratio(parts: Floats, totals: Floats, otherwise: float = np.nan) -> Floats:
    """Ratios; ``otherwise`` where the total is 0."""
    ratios: Floats = np.divide(parts, totals, out=np.full(len(parts), otherwise), where=totals > 0)
    return ratios
