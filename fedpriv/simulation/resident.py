"""The one net of a process: it stays on the device, and a client's turn only rewrites its row."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedpriv.config import TrainConfig
from fedpriv.models.net import Net, Outputs
from fedpriv.parameters import ParameterSpace

CHUNK = 128
"""Samples per forward pass without gradient; small enough for the activations to stay in the processor's cache."""


class Resident:
    """A net whose state and gradients are views of two rows ``(p,)``."""

    def __init__(self, net: Net, space: ParameterSpace, device: torch.device) -> None:
        self.net = net.to(device)
        self.space = space
        self.device = device
        self.row = space.row_of(self.net)
        self.grad = torch.zeros_like(self.row)
        space.bind(self.net, self.row, self.grad)
        self.stochastic = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in net.modules())
        self._frozen: Resident | None = None
        self._trained: frozenset[str] | None = None

    @property
    def frozen(self) -> Resident:
        """A second net for constant models (teachers), made when first asked for; always in evaluation mode."""
        if self._frozen is None:
            self._frozen = Resident(copy.deepcopy(self.net), self.space, self.device)
            self._frozen.set_trained(frozenset())
        return self._frozen

    def set_trained(self, roles: frozenset[str]) -> None:
        """Let ``roles`` learn; the others are fixed functions: no gradient, evaluation mode."""
        if roles == self._trained:
            return
        self._trained = roles
        self.net.train()
        for name, part in self.net.named_children():
            part.train(name in roles)
            part.requires_grad_(name in roles)

    def optimiser(self, roles: frozenset[str], config: TrainConfig) -> torch.optim.SGD:
        """A fresh SGD over the roles' slices of the row: a few flat tensors, whatever the number of layers."""
        groups = [
            {"params": list(self._flat(roles, "weight")), "weight_decay": config.weight_decay},
            {"params": list(self._flat(roles, "bias")), "weight_decay": config.weight_decay_bias},
        ]
        return torch.optim.SGD([g for g in groups if g["params"]], lr=config.lr, momentum=config.momentum, foreach=False)

    def _flat(self, roles: frozenset[str], kind: str) -> Iterator[Tensor]:
        for part in self.space.slices(roles, kind):  # type: ignore[arg-type]
            flat = self.row[part]
            flat.grad = self.grad[part]
            yield flat

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Encoder features ``(n, d)`` of images ``(n, C, H, W)`` under the present row, in evaluation mode."""
        self.set_trained(frozenset())
        return torch.cat([self.net.encode(chunk) for chunk in channels_last(images).split(CHUNK)])

    @torch.no_grad()
    def from_features(self, features: Tensor) -> Outputs:
        """Outputs for features ``(n, d)`` under the present row, in evaluation mode."""
        self.set_trained(frozenset())
        return self.net.from_features(features)


def channels_last(inputs: Tensor) -> Tensor:
    """Images ``(n, C, H, W)`` in the memory order that convolutions are fastest in; anything else as it is."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
