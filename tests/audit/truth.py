"""What a message of one step must be, computed from the true data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.audit.record.attacker_view import cut
from fedpriv.audit.record.base import Message, Truth
from fedpriv.audit.record.run import RunRecord


def gradients_of(found: RunRecord, message: Message, truth: Truth) -> dict[str, Tensor]:
    """Of the mean loss over the truth at the weights that the client was sent, by the names of an observation."""
    federation = found.federation
    federation.resident.row.copy_(federation.resident.space.pack(message.received, federation.initial.clone()))
    net, dataset = federation.resident.net.requires_grad_(True), federation.dataset
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (dataset.mean, dataset.std))
    loss = F.cross_entropy(net((truth.images - mean) / std).logits, truth.labels)
    parameters = dict(net.named_parameters())
    names = cut(net, message.uploaded).names
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return {names[name]: gradient for name, gradient in zip(parameters, gradients, strict=True) if name in message.uploaded}
