"""The change of a client's local update: its weights minus those that it was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedpriv.wire import Payload
from fedpriv.wire.coding import INDICES, VALUES, base_name, is_model


def model_tensors(payload: Payload) -> dict[str, Tensor]:
    """The payload's floating-point tensors that are part of the net."""
    return {name: tensor for name, tensor in payload.tensors.items() if is_model(name) and tensor.is_floating_point()}


def changes(payload: Payload, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The changes of the model tensors, by name. For tensors that the client was not sent, the change is the tensor itself."""
    found = model_tensors(payload)
    if payload.kind != "weights":  # they are changes already
        return found
    return {name: tensor - received[name] if name in received else tensor for name, tensor in found.items()}


def reference(name: str, payload: Payload, received: Mapping[str, Tensor]) -> Tensor:
    """What the server adds the changes of a tensor to: all of it, or of a sparse change the entries that are sent."""
    whole = received[base_name(name)]
    if not name.endswith(VALUES):
        return whole
    return whole.reshape(-1)[payload.tensors[base_name(name) + INDICES].long()]


def norm(tensors: Iterable[Tensor]) -> float:
    """The L2 norm of all entries together, summed in float64."""
    return float(torch.stack([tensor.double().square().sum().cpu() for tensor in tensors] or [torch.zeros(())]).sum().sqrt())
