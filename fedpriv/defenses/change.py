"""The change of a local update: the client's weights minus the received ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedpriv.wire import Payload
from fedpriv.wire.coding import INDICES, VALUES, base_name, is_model


def model_tensors(payload: Payload) -> dict[str, Tensor]:
    """The floating-point tensors of the net in a payload, by name."""
    return {name: tensor for name, tensor in payload.tensors.items() if is_model(name) and tensor.is_floating_point()}


def changes(payload: Payload, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The changes of the net's tensors, by name; for a tensor that was not received, the tensor itself."""
    tensors = model_tensors(payload)
    if payload.kind != "weights":  # they are changes already
        return tensors
    return {name: tensor - received[name] if name in received else tensor for name, tensor in tensors.items()}


def reference(name: str, payload: Payload, received: Mapping[str, Tensor]) -> Tensor:
    """The received values to which the server adds a tensor's change; for a sparse change, those of the sent entries."""
    whole = received[base_name(name)]
    if not name.endswith(VALUES):
        return whole
    return whole.reshape(-1)[payload.tensors[base_name(name) + INDICES].long()]


def norm(tensors: Iterable[Tensor]) -> float:
    """The L2 norm over the entries of all tensors, summed in float64."""
    return float(torch.stack([tensor.double().square().sum().cpu() for tensor in tensors] or [torch.zeros(())]).sum().sqrt())
