"""What a model predicts of test samples, as scores need it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Predictions:
    """A model's predictions on n samples, on the CPU.

    Attributes:
        labels, predicted: the classes ``(n,)`` int64; predicted is the one with the highest logit. Of a regression the numbers in
            the labels' unit, float64.
        accuracy: share of right predictions, by the weights; of a regression NaN.
        positive: predicted probability ``(n,)`` float64 of the second of two classes; ``None``: there are not two.
        weights: of the samples ``(n,)`` float64; ``None``: all are equal.
        logits: ``(n, C)``, of a regression the predicted numbers ``(n, 1)``, where they are kept for scores of the user's own.
    """

    labels: NDArray[Any]
    predicted: NDArray[Any]
    accuracy: float
    positive: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None
    logits: Tensor | None = None

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, weights: Tensor | None = None, keep: bool = False) -> Self:
        """The predictions of logits ``(n, C)``, which are kept if ``keep``."""
        predicted, positive = logits.argmax(1), positive_of(logits)
        return cls(
            labels.cpu().numpy(),
            predicted.cpu().numpy(),
            weighted_mean(predicted == labels, weights),
            None if positive is None else positive.numpy(),
            None if weights is None else weights.double().cpu().numpy(),
            logits.cpu() if keep else None,
        )

    def at(self, index: Tensor, weights: Tensor | None = None) -> Predictions:
        """The predictions on the samples at some positions ``(m,)``, with other weights ``(m,)``."""
        where = index.cpu().numpy()
        labels, predicted = self.labels[where], self.predicted[where]
        own = None if weights is None else weights.cpu()
        accuracy = _share_of_right(predicted, labels, own)
        positive = None if self.positive is None else self.positive[where]
        logits = None if self.logits is None else self.logits[where]
        return Predictions(labels, predicted, accuracy, positive, None if own is None else own.double().numpy(), logits)


def pooled(clients: Sequence[Predictions], sizes: Sequence[int]) -> Predictions:
    """The predictions of several clients together. Where samples have weights, those of a client add up to its size.

    Args:
        sizes: of the clients, as in the mean that is weighted by them.
    """
    weights = None
    if any(client.weights is not None for client in clients):
        own = [np.ones(len(client.labels)) if client.weights is None else client.weights for client in clients]
        weights = np.concatenate([part * (size / part.sum()) for part, size in zip(own, sizes, strict=True)])
    labels = np.concatenate([client.labels for client in clients])
    predicted = np.concatenate([client.predicted for client in clients])
    scores = [client.positive for client in clients if client.positive is not None]
    positive = np.concatenate(scores) if len(scores) == len(clients) else None
    accuracy = _share_of_right(predicted, labels, None if weights is None else torch.from_numpy(weights))
    logits = [client.logits for client in clients if client.logits is not None]
    kept = torch.cat(logits) if len(logits) == len(clients) else None
    return Predictions(labels, predicted, accuracy, positive, weights, kept)


def _share_of_right(predicted: NDArray[Any], labels: NDArray[Any], weights: Tensor | None) -> float:
    """The accuracy; of numbers NaN."""
    return math.nan if labels.dtype.kind == "f" else weighted_mean(torch.from_numpy(predicted == labels), weights)


def positive_of(logits: Tensor) -> Tensor | None:
    """The softmax's probability of the second of two classes, on the CPU in float64: ``(..., 2)`` -> ``(...)``."""
    if logits.shape[-1] != 2:
        return None
    wide = logits.double().cpu()
    return torch.sigmoid(wide[..., 1] - wide[..., 0])


def weighted_mean(right: Tensor, weights: Tensor | None) -> float:
    """Share of right predictions ``(n,)``, weighted by ``(n,)``; ``None``: all weights are equal."""
    if weights is None:
        return float(right.double().mean())
    return float((right.double() * weights).sum() / weights.sum())
