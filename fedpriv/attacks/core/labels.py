"""Labels of samples: classes, which are whole numbers, or numbers that a net predicts, which are floats."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def groups(labels: Tensor) -> Tensor:
    """The class of each sample ``(n,)``: its label, or 0 where labels are numbers."""
    return torch.zeros_like(labels, dtype=torch.long) if labels.is_floating_point() else labels


def label_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean loss: cross-entropy of logits ``(B, C)`` and classes ``(B,)`` or their probabilities ``(B, C)``; of outputs
    ``(B, 1)`` and numbers ``(B,)``, the squared error."""
    if labels.is_floating_point() and labels.ndim < outputs.ndim:
        return F.mse_loss(outputs.squeeze(-1), labels)
    return F.cross_entropy(outputs, labels)


def targets(labels: Tensor, classes: int, like: torch.dtype) -> Tensor:
    """What :func:`label_loss` compares outputs with: the probabilities ``(n, C)`` of classes, or the numbers ``(n,)``."""
    return labels.to(like) if labels.is_floating_point() else F.one_hot(labels, classes).to(like)
