"""The accuracy of a constant answer, which a trained model should exceed."""

from __future__ import annotations

import math

import torch

from fedpriv.config import RunConfig
from fedpriv.data.federated import FederatedData
from fedpriv.methods.base import Method

_Z = 1.959963984540054
"""The normal quantile of 95 %, two-sided."""


def chance(data: FederatedData, method: Method, config: RunConfig, classes: int) -> tuple[float, int]:
    """The clients' mean accuracy with the best constant answer, and the number of their test samples.

    If all clients are tested with the same model, there is one constant for all; if each has its own model, it is the most
    frequent class of each client (an accuracy of one half with two balanced classes).
    """
    split = config.eval.split
    labels = data.labels(split)
    best, total, tested = list[float](), torch.zeros(classes, dtype=torch.float64), []
    for client in range(config.data.clients):
        if len(index := data.indices(split, client)):
            weights = data.weights(split, client)
            # On the CPU: on a GPU, weighted sums are not deterministic.
            weights = None if weights is None else weights.cpu()
            counts = torch.bincount(labels[index].cpu(), weights=weights, minlength=classes).double()
            share = counts / counts.sum()
            best.append(float(share.max()))
            total += share
            tested.append(index)
    one_model = not method.tested_names and not method.adaptation(config.train.rounds)
    constant = float(total.max()) / len(best) if one_model else math.fsum(best) / len(best)
    return constant, len(set(torch.cat(tested).tolist()))


def at_chance(accuracy: float, guessed: float, samples: int) -> bool:
    """Whether an accuracy on ``samples`` samples is not significantly above ``guessed``, that of a constant answer.

    That is, whether the lower end of Wilson's 95 % interval is at most ``guessed``.
    """
    share = round(accuracy * samples) / samples
    return share <= guessed + _Z * math.sqrt(guessed * (1 - guessed) / samples)
