"""Cross-entropy on the labels, FedAvg's objective (McMahan et al., AISTATS 2017)."""

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
    """Mean cross-entropy of a batch, from logits ``(..., B, C)``: a scalar, or ``(...)``."""
    logits, labels = step.outputs.logits, step.labels
    return F.cross_entropy(logits, labels) if labels.ndim == 1 else mean_cross_entropy(logits, labels)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``F.cross_entropy`` of several batches: logits ``(..., B, C)`` and labels ``(..., B)`` -> ``(...)``."""
    return -F.log_softmax(logits, -1).gather(-1, labels[..., None]).mean((-2, -1))


@register("cross-entropy")
class CrossEntropy(Objective):
    """Cross-entropy on the labels."""

    paper = "McMahan et al., AISTATS 2017"

    @stackable
    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step)
