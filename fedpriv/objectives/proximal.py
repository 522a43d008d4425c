"""A proximal term to an anchor, as a term of the gradient; common to FedProx and FedDyn."""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor

from fedpriv.interfaces import Learner, LocalUpdate
from fedpriv.parameters import ParameterSpace


def received_parameters(received: Mapping[str, Tensor], space: ParameterSpace) -> list[str]:
    """The parameters (no buffers) that the server sent this round, to which a proximal term can apply."""
    return [entry.name for entry in space.entries if entry.kind != "buffer" and entry.name in received]


def on_received(update: LocalUpdate, space: ParameterSpace, value: float, but: Container[str] = ()) -> Tensor:
    """``(p,)``: ``value`` at received parameters, ``but`` some, zero elsewhere."""
    row = torch.zeros_like(update.start)
    for part in space.spans(name for name in received_parameters(update.received, space) if name not in but):
        row[part] = value
    return row


def pull(learner: Learner, strength: Tensor, anchor: Tensor) -> None:
    """Add ``strength * (model - anchor)`` to the gradient; rows ``(p,)``, entry by entry."""
    learner.grad.addcmul_(strength, learner.row - anchor)
