"""The gradient of a proximal term, ``strength (x - anchor)``; shared by FedProx and FedDyn."""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor

from fedpriv.interfaces import Learner, LocalUpdate
from fedpriv.parameters import ParameterSpace


def received_parameters(received: Mapping[str, Tensor], space: ParameterSpace) -> list[str]:
    """Names of the parameters (no buffers) in a download."""
    return [entry.name for entry in space.entries if entry.kind != "buffer" and entry.name in received]


def on_received(update: LocalUpdate, space: ParameterSpace, value: float, excluded: Container[str] = ()) -> Tensor:
    """A row ``(p,)`` that is ``value`` at the received parameters except those in ``excluded``, and zero elsewhere."""
    row = torch.zeros_like(update.start)
    for part in space.spans(name for name in received_parameters(update.received, space) if name not in excluded):
        row[part] = value
    return row


def pull(learner: Learner, strength: Tensor, anchor: Tensor) -> None:
    """Add ``strength * (model - anchor)`` to the gradient, entry by entry; all are rows ``(p,)``."""
    learner.grad.addcmul_(strength, learner.row - anchor)
