"""The one net of a process: it stays on the device, and a client's turn only rewrites its row."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.config import TrainConfig
from fedpriv.models.net import Net, Outputs
from fedpriv.parameters import ParameterSpace
from fedpriv.samples import Inputs, in_chunks

CHUNK = 128
"""Samples per forward pass without gradient; small enough for the activations to stay in the processor's cache."""


class FlatSGD:
    """``torch.optim.SGD`` on a few flat tensors, whatever the number of layers; bit for bit the same.

    The bookkeeping around a step of ``torch.optim`` takes longer than the arithmetic of a small net.

    Args:
        parts: values, their gradient and their weight decay.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> None:
        self._parts, self._momentum = parts, momentum
        self.param_groups = [{"lr": lr}]
        """Where the learning rate is set, as torch's optimisers have it."""
        self._velocity: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        first, lr = not self._velocity, self.param_groups[0]["lr"]
        for i, (values, grad, decay) in enumerate(self._parts):
            if decay:
                grad = grad.add(values, alpha=decay)
            if self._momentum:
                if first:
                    self._velocity.append(grad.clone())
                else:
                    self._velocity[i].mul_(self._momentum).add_(grad)
                grad = self._velocity[i]
            values.add_(grad, alpha=-lr)


class Resident:
    """A net whose state and gradients are views of two rows ``(p,)``."""

    def __init__(self, net: Net, space: ParameterSpace, device: torch.device) -> None:
        self.net = net.to(device)
        self.space = space
        self.device = device
        self.row = space.row_of(self.net)
        self.grad = torch.zeros_like(self.row)
        space.bind(self.net, self.row, self.grad)
        self.views = space.unpack(self.row)
        self.parameters = {name: parameter for name, parameter in self.net.named_parameters() if name in space}
        self.roles = frozenset(entry.role for entry in space.entries)
        """The roles that have a state; the others are constants."""
        self.buffers = tuple(entry.name for entry in space.entries if entry.kind == "buffer")
        self._frozen: Resident | None = None
        self._companion: Resident | None = None
        self._trained: frozenset[str] | None = None
        self._flat: dict[tuple[frozenset[str], frozenset[str]], list[tuple[str, Tensor, Tensor]]] = {}

    @property
    def frozen(self) -> Resident:
        """A second net for constant models (teachers), made when first asked for; always in evaluation mode."""
        if self._frozen is None:
            self._frozen = Resident(self._copied(), self.space, self.device)
            self._frozen.set_trained(frozenset())
        return self._frozen

    @property
    def companion(self) -> Resident:
        """A third net, for a second model that learns beside the first; made when first asked for."""
        if self._companion is None:
            self._companion = Resident(self._copied(), self.space, self.device)
        return self._companion

    def _copied(self) -> Net:
        constants = {id(parameter): parameter for name, parameter in self.net.named_parameters() if name not in self.space}
        return copy.deepcopy(self.net, constants)

    def set_trained(self, roles: frozenset[str]) -> None:
        """Let ``roles`` learn; the others are fixed functions: no gradient, evaluation mode."""
        if roles == self._trained:
            return
        self._trained = roles
        self.net.train()
        for name, part in self.net.named_children():
            part.train(name in roles and name in self.roles)
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name.partition(".")[0] in roles)

    def parts(self, roles: frozenset[str], unused: frozenset[str] = frozenset()) -> list[tuple[str, Tensor, Tensor]]:
        """Kind (weight or bias), values and gradient of the roles' slices of the row, as few as there are.

        Args:
            unused: parameters that are left out.
        """
        key = (roles, unused)
        if key not in self._flat:
            entries = [entry for entry in self.space.entries if entry.role in roles and entry.name not in unused]
            self._flat[key] = [
                (kind, self.row[part], self.grad[part])
                for kind in ("weight", "bias")
                for part in self.space.spans(entry.name for entry in entries if entry.kind == kind)
            ]
        return self._flat[key]

    def optimiser(
        self, roles: frozenset[str], config: TrainConfig, lr: float, unused: frozenset[str] = frozenset()
    ) -> FlatSGD | torch.optim.Optimizer:
        """A fresh optimiser over the roles' slices of the row, but those of the parameters ``unused``."""
        decay = {"weight": config.weight_decay, "bias": config.weight_decay_bias}
        if config.optimizer == "sgd":
            return FlatSGD([(row, grad, decay[kind]) for kind, row, grad in self.parts(roles, unused)], lr, config.momentum)
        groups = []
        for kind, row, grad in self.parts(roles, unused):
            flat = row.detach()
            flat.grad = grad
            groups.append({"params": [flat], "weight_decay": decay[kind]})
        if config.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=lr, fused=True)
        return torch.optim.Adam(groups, lr=lr, fused=True)

    @torch.no_grad()
    def features(self, inputs: Inputs) -> Tensor:
        """Encoder features ``(n, d)`` of n samples under the present row, in evaluation mode."""
        self.set_trained(frozenset())
        lengths = getattr(self.net.encoder, "lengths", None)
        return in_chunks(inputs, CHUNK, lambda chunk: self.net.encode(self.shaped(chunk)), lengths and lengths(inputs))

    @torch.no_grad()
    def from_features(self, features: Tensor) -> Outputs:
        """Outputs for features ``(n, d)`` under the present row, in evaluation mode."""
        self.set_trained(frozenset())
        return self.net.from_features(features)

    def shaped(self, inputs: Inputs) -> Inputs:
        """A batch in the form that the encoder is fastest on: see :func:`channels_last`; texts as long as the longest of them."""
        if isinstance(inputs, Tensor) and inputs.ndim == 4:
            return channels_last(inputs)
        trim = getattr(self.net.encoder, "trim", None)
        return inputs if trim is None else trim(inputs)


def channels_last(images: Tensor) -> Tensor:
    """Images ``(n, C, H, W)`` in the memory order that convolutions are fastest in."""
    return images.contiguous(memory_format=torch.channels_last)
