"""Scores of the user's own: functions of predicted probabilities and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.scores.catalogue import SCORES, Scores
from fedpriv.scores.predictions import Predictions

CustomScore = Callable[[Tensor, Tensor], float]
"""Probabilities of the classes ``(n, C)`` float64, and labels ``(n,)`` int64 -> a number; of a regression, predicted numbers and
labels, both ``(n,)`` float64."""
CustomScores = Mapping[str, CustomScore]


def check_custom(scores: CustomScores) -> None:
    """Check the names of scores of the user's own; :class:`UsageError` if one is no name, or one of fedpriv's scores."""
    for name, function in scores.items():
        if not (isinstance(name, str) and name.isidentifier() and name.isascii()):
            raise UsageError(f"metrics: {name!r} is no name for a metric; letters, digits and _, such as cohen_kappa")
        if name in SCORES:
            raise UsageError(f"metrics: {name} is measured anyway; give your function another name")
        if not callable(function):
            raise UsageError(f"metrics: {name} is no function of probabilities (n, C) and labels (n,)")


def custom_scored(functions: CustomScores, clients: Sequence[Predictions]) -> list[Scores]:
    """The user's own scores of each client, without those that are not finite. Samples have no weights here."""
    if not functions:
        return [{} for _ in clients]
    return [{name: value for name, value in _values(functions, client) if math.isfinite(value)} for client in clients]


def _values(functions: CustomScores, client: Predictions) -> list[tuple[str, float]]:
    assert client.logits is not None, "they are kept for this"
    labels = torch.from_numpy(client.labels)
    given = client.logits[:, 0] if labels.is_floating_point() else torch.softmax(client.logits.double(), 1)
    return [(name, float(function(given, labels))) for name, function in functions.items()]
