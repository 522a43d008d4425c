"""Cross-entropy on the labels, FedAvg's objective (McMahan et al., AISTATS 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import Step, stackable
from fedpriv.objectives import Objective, register


class Plain(Objective):
    """A plain gradient step on any loss; needs no options and no context.

    Args:
        smallest_batch: smaller batches are skipped.
    """

    def __init__(self, smallest_batch: int = 1) -> None:
        self.smallest_batch = smallest_batch


PLAIN = Plain()


@stackable
def cross_entropy(step: Step) -> Tensor:
    """Mean cross-entropy of a batch, from logits ``(..., B, C)``: a scalar, or ``(...)``; weighted by ``step.class_weights``."""
    logits, labels = step.outputs.logits, step.labels
    if step.class_weights is not None:
        return weighted_cross_entropy(logits, labels, step.class_weights)
    return F.cross_entropy(logits, labels) if labels.ndim == 1 else mean_cross_entropy(logits, labels)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``F.cross_entropy`` of several batches: logits ``(..., B, C)`` and labels ``(..., B)`` -> ``(...)``."""
    return -F.log_softmax(logits, -1).gather(-1, labels[..., None]).mean((-2, -1))


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The cross-entropy of batches by class weights ``(C,)``, divided by the sum of the samples' weights: ``(..., B, C)`` and
    ``(..., B)`` -> ``(...)``; of one batch, ``F.cross_entropy(logits, labels, weight=weights)``."""
    losses, weighing = -F.log_softmax(logits, -1).gather(-1, labels[..., None]).squeeze(-1), weights[labels]
    return (losses * weighing).sum(-1) / weighing.sum(-1)


def balanced_weights(counts: Sequence[int]) -> Tensor:
    """The weight ``n / (C n_c)`` of each class with n_c of n samples ``(C,)``, as of scikit-learn's ``class_weight="balanced"``.

    C counts the classes that have samples; the others, which no loss meets, have weight 1.
    """
    held = torch.tensor(counts, dtype=torch.float64)
    weights = held.sum() / ((held > 0).sum() * held)
    return torch.where(held > 0, weights, 1.0).float()


@register("cross-entropy")
class CrossEntropy(Objective):
    """Cross-entropy on the labels."""

    paper = "McMahan et al., AISTATS 2017"
    weighs_classes = True

    @stackable
    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step)
