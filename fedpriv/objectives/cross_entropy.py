"""The loss on the labels, FedAvg's objective (McMahan et al., AISTATS 2017): cross-entropy, or squared error of numbers."""

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


@stackable
def label_loss(step: Step) -> Tensor:
    """The mean loss on the labels of a batch: cross-entropy of classes, squared error of numbers, which are floats."""
    return squared_error(step.outputs.logits, step.labels) if step.labels.is_floating_point() else cross_entropy(step)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of batches: outputs ``(..., B, 1)`` and labels ``(..., B)`` -> ``(...)``."""
    return (outputs.squeeze(-1) - labels).square().mean(-1)


def loss_on(outputs: Tensor, labels: Tensor, weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """The loss on the labels of samples: outputs ``(n, C)`` and labels ``(n,)`` -> a scalar.

    Args:
        weights: of the classes ``(C,)``.
        reduction: ``mean`` or ``sum``.
    """
    if labels.is_floating_point():
        return F.mse_loss(outputs.squeeze(-1), labels, reduction=reduction)
    return F.cross_entropy(outputs, labels, weights, reduction=reduction)


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
    """Cross-entropy on the labels; of labels that are numbers, the squared error."""

    paper = "McMahan et al., AISTATS 2017"
    weighs_classes = True

    @stackable
    def loss(self, step: Step) -> Tensor:
        return label_loss(step)
