"""What a constant answer reaches: a model that does no better has learnt nothing that its accuracy shows."""

from __future__ import annotations

import math

import torch

from fedpriv.config import RunConfig
from fedpriv.data.federated import FederatedData
from fedpriv.methods.base import Method

_Z = 1.959963984540054
"""The normal quantile of 95 %, two-sided."""


def chance(data: FederatedData, method: Method, config: RunConfig, classes: int) -> tuple[float, int]:
    """Mean accuracy of the best constant answer over the clients' local test sets, and the number of samples in them.

    One constant for all clients where all are tested with the same model; where each has its own model, one for each client,
    which is the accuracy of always answering the client's most frequent class (one half with two balanced classes).
    """
    split = config.eval.split
    labels = data.labels(split)
    own, total, tested = list[float](), torch.zeros(classes, dtype=torch.float64), []
    for client in range(config.data.clients):
        if len(index := data.indices(split, client)):
            weights = data.weights(split, client)
            # On the processor: with weights, CUDA's sums vary.
            weights = None if weights is None else weights.cpu()
            counts = torch.bincount(labels[index].cpu(), weights=weights, minlength=classes).double()
            share = counts / counts.sum()
            own.append(float(share.max()))
            total += share
            tested.append(index)
    one_model = not method.tested_names and not method.adaptation(config.train.rounds)
    constant = float(total.max()) / len(own) if one_model else math.fsum(own) / len(own)
    return constant, len(set(torch.cat(tested).tolist()))


def at_chance(accuracy: float, guessed: float, samples: int) -> bool:
    """Whether Wilson's 95 % interval of an accuracy on ``samples`` samples includes ``guessed``, that of a constant answer.

    It is the inversion of the score test, so its lower end is at most ``guessed`` where the accuracy is no more than ``z``
    standard errors above it.
    """
    share = round(accuracy * samples) / samples
    return share <= guessed + _Z * math.sqrt(guessed * (1 - guessed) / samples)
