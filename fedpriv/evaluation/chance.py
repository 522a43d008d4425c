"""The scores of a constant answer, which a trained model should exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.data.federated import FederatedData
from fedpriv.methods.base import Method
from fedpriv.scores.catalogue import SCORES, Score
from fedpriv.scores.predictions import Predictions
from fedpriv.scores.tasks import Classes, Task

_Z = 1.959963984540054
"""The normal quantile of 95 %, two-sided."""


def chance(data: FederatedData, method: Method, config: RunConfig, classes: int) -> tuple[float, int]:
    """The clients' mean accuracy with the best constant answer, and the number of their test samples.

    If all clients are tested with the same model, there is one constant for all; if each has its own model, it is the most
    frequent class of each client (an accuracy of one half with two balanced classes).
    """
    shares = _class_shares(data, config, classes)
    total = sum(shares.values(), torch.zeros(classes, dtype=torch.float64))
    best = float(total.max()) if _is_one_model(method, config) else math.fsum(float(share.max()) for share in shares.values())
    tested = torch.cat([data.indices(config.eval.split, client) for client in shares])
    return best / len(shares), len(set(tested.tolist()))


def _class_shares(data: FederatedData, config: RunConfig, classes: int) -> dict[int, Tensor]:
    """Tested client -> the share ``(C,)`` of each class among its test samples."""
    split, shares = config.eval.split, dict[int, Tensor]()
    for client in range(config.data.clients):
        if len(index := data.indices(split, client)):
            weights = data.weights(split, client)
            # On the CPU: on a GPU, weighted sums are not deterministic.
            weights = None if weights is None else weights.cpu()
            counts = torch.bincount(data.labels(split)[index].cpu(), weights=weights, minlength=classes).double()
            shares[client] = counts / counts.sum()
    return shares


def constant_scores(data: FederatedData, method: Method, config: RunConfig, task: Task) -> dict[str, float]:
    """The clients' mean scores with the most frequent class as the answer to every sample, and its share as the probability; of a
    regression, with the mean of all training labels.

    As for :func:`chance`, that class is one for all clients, or each client's.
    """
    classes = task.count if isinstance(task, Classes) else 0
    predictions = _most_frequent(data, method, config, classes) if classes else _training_mean(data, config, task)
    scores = task.scored(predictions)
    return {name: mean(known) for name in SCORES if (known := [each[name] for each in scores if name in each])}


def _training_mean(data: FederatedData, config: RunConfig, task: Task) -> list[Predictions]:
    """Predictions for each tested client: for every sample, the mean of all clients' training labels."""
    trained = torch.cat([data.indices("train", client) for client in range(config.data.clients)])
    constant = data.labels("train")[trained].double().mean()
    split, predictions = config.eval.split, list[Predictions]()
    for client in range(config.data.clients):
        if len(index := data.indices(split, client)):
            labels = data.labels(split)[index].double()
            predictions.append(task.predictions(constant.expand(len(labels), 1), labels, data.weights(split, client)))
    return predictions


def _most_frequent(data: FederatedData, method: Method, config: RunConfig, classes: int) -> list[Predictions]:
    """Predictions for each tested client: for every sample, the most frequent class."""
    split, answers = config.eval.split, _class_shares(data, config, classes)
    common = torch.stack(list(answers.values())).mean(0) if _is_one_model(method, config) else None
    predictions = []
    for client, own in answers.items():
        shares = own if common is None else common
        held = data.labels(split)[data.indices(split, client)]
        logits = (shares.log() - 1e-9 * torch.arange(classes)).expand(len(held), -1)  # of equal shares, the first class
        predictions.append(Predictions.of(logits, held.cpu(), data.weights(split, client)))
    return predictions


def _is_one_model(method: Method, config: RunConfig) -> bool:
    """Whether all clients are tested with the same model."""
    return not method.tested_names and not method.adaptation(config.train.rounds)


def no_better(clients: Sequence[float | None], constant: float, score: Score) -> bool:
    """Whether the clients' mean of a score is not significantly better than a constant answer's: the worse end of its 95 %
    interval over the clients is no better."""
    known = [score.merit(value) for value in clients if value is not None]
    error = stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0
    return mean(known) - _Z * error <= score.merit(constant)


def at_chance(accuracy: float, guessed: float, samples: int) -> bool:
    """Whether an accuracy on ``samples`` samples is not significantly above ``guessed``, that of a constant answer.

    That is, whether the lower end of Wilson's 95 % interval is at most ``guessed``.
    """
    share = round(accuracy * samples) / samples
    return share <= guessed + _Z * math.sqrt(guessed * (1 - guessed) / samples)
