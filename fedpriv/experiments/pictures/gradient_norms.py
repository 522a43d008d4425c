"""Gradient norms by tensor before and after local training, which show in which layers clients differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.methods.base import ServerState
from fedpriv.simulation.setup import Federation


@dataclass(frozen=True)
class GradientNorm:
    """L2 norms of one tensor's gradient for each client: at the received model, and at the locally trained one."""

    before: tuple[float, ...]
    after: tuple[float, ...]


def gradient_norms(federation: Federation, server: ServerState, clients: Sequence[int], round: int) -> dict[str, GradientNorm]:
    """For each tensor, in forward order, the norm of the gradient of each client's mean loss on all of its data.

    Each client trains as in its first local update, without state of earlier ones.
    """
    method, resident, space = federation.method, federation.resident, federation.resident.space
    payload = method.download(server, round)
    received = {} if payload is None else {name: tensor.to(resident.device) for name, tensor in payload.tensors.items()}
    norms: dict[str, list[tuple[float, float]]] = {name: [] for name in federation.agreement.layers}
    for client in clients:
        private = method.initial_private(client, federation.initial)
        space.pack(received, resident.row.copy_(federation.initial))
        data, augment = federation.data.train(client), federation.augment
        update = ModelLocalUpdate(resident, data, federation.config, round, client, received, private, True, augment=augment)
        before = update.gradient().clone()
        method.local_update(update)
        after = update.gradient()
        for name, values in norms.items():
            values.append((_norm(space.view(before, name)), _norm(space.view(after, name))))
    return {name: GradientNorm(*zip(*values, strict=True)) for name, values in norms.items()}


def _norm(values: Tensor) -> float:
    return float(values.double().norm())
