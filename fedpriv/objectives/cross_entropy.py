"""Cross-entropy on the labels."""

from torch import Tensor
from torch.nn import functional as F

from fedpriv.objectives.step import Step


def cross_entropy(step: Step) -> Tensor:
    """Mean cross-entropy of the batch's logits ``(B, C)``; a scalar."""
    return F.cross_entropy(step.outputs.logits, step.labels)
