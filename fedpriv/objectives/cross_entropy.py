"""Cross-entropy on the labels."""

from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import Step
from fedpriv.objectives import Objective, register


class Plain(Objective):
    """A plain gradient step on any loss."""

    def __init__(self) -> None:
        """Without options and without a run's context."""


PLAIN = Plain()


def cross_entropy(step: Step) -> Tensor:
    """Mean cross-entropy of the batch's logits ``(B, C)``; a scalar."""
    return F.cross_entropy(step.outputs.logits, step.labels)


@register("cross-entropy")
class CrossEntropy(Objective):
    """Cross-entropy on the labels."""

    paper = "McMahan et al., AISTATS 2017"

    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step)
