"""A client's model where it is trained: state and gradient as rows, and the passes through the net.

:class:`fedpriv.client.resident.Resident` is the one net of a process, which a client's turn has to itself;
:class:`fedpriv.simulation.vectorized.lane.Lane` is a client's place in a net that trains several at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.config import TrainConfig
from fedpriv.interfaces import Batch, Learner, Loss
from fedpriv.models.net import Outputs
from fedpriv.parameters import ParameterSpace
from fedpriv.samples import Inputs, split

CHUNK = 128
"""Samples per forward pass without gradient; small enough for the activations to stay in the processor's cache."""

Parts = list[tuple[str, Tensor, Tensor]]
"""Kind (weight or bias), values and gradient of slices of a row."""


class Descent(ABC):
    """The interface of an optimiser; torch's have it."""

    param_groups: list[dict[str, float]]
    """As in torch's optimisers; holds the learning rate."""

    @abstractmethod
    def step(self) -> None:
        """One step along the gradient."""


class ClientModel(ABC):
    """A model whose state and gradients are two rows ``(p,)``: writing them moves it."""

    def __init__(self, space: ParameterSpace, row: Tensor, grad: Tensor) -> None:
        self.space, self.row, self.grad = space, row, grad
        self.views = space.unpack(row)
        self.roles = frozenset(entry.role for entry in space.entries)
        """The roles that have a state; the others are constants."""
        self.buffers = tuple(entry.name for entry in space.entries if entry.kind == "buffer")
        self._slices: dict[tuple[frozenset[str], frozenset[str]], list[tuple[str, slice]]] = {}
        self._parts: dict[tuple[frozenset[str], frozenset[str]], Parts] = {}

    @property
    def device(self) -> torch.device:
        return self.row.device

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters by name, with gradient where the role is differentiated."""

    @property
    @abstractmethod
    def frozen(self) -> ClientModel:
        """A second model of the net for constant models (teachers), made on first use; always in evaluation mode."""

    @property
    @abstractmethod
    def companion(self) -> ClientModel:
        """A third one, for a second model that is trained beside the first; made on first use."""

    @abstractmethod
    def set_trained(self, roles: frozenset[str], differentiated: frozenset[str] | None = None) -> None:
        """Let ``roles`` learn; the others are fixed functions: no gradient, evaluation mode.

        Args:
            differentiated: the roles that have a gradient, if not those that learn.
        """

    @abstractmethod
    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        """The outputs for B samples, or for the features ``(B, d)`` of a frozen encoder, in the mode that was set.

        Args:
            half: the pass computes in bfloat16 (``torch.autocast``), whatever the row's precision.
        """

    @abstractmethod
    def backward(self, value: Tensor, add: bool = False) -> None:
        """The gradient of a scalar of :meth:`forward`'s outputs, in place of the one before or added to it."""

    def differentiate(self, batch: Batch, loss: Loss, learner: Learner) -> Tensor | None:
        """The gradient of a loss on a batch, in place of the one before, where there is a shorter way than a pass and a way back.

        Returns:
            The loss, detached; ``None``: there is none, and nothing was done.
        """
        return None

    @abstractmethod
    def features(self, inputs: Inputs) -> Tensor:
        """Encoder features ``(n, d)`` of n samples under the present row, in evaluation mode, without gradient."""

    @abstractmethod
    def from_features(self, features: Tensor) -> Outputs:
        """Outputs for features ``(n, d)`` under the present row, in evaluation mode, without gradient."""

    @abstractmethod
    def shaped(self, inputs: Inputs) -> Inputs:
        """Samples in the form that batches of them are cut from and shown to :meth:`forward`."""

    def parts(self, roles: frozenset[str], unused: frozenset[str] = frozenset()) -> Parts:
        """Kind (weight or bias), values and gradient of the roles' slices of the row, as few as there are.

        Args:
            unused: parameters that are left out.
        """
        key = (roles, unused)
        if key not in self._parts:
            self._parts[key] = [(kind, self.row[part], self.grad[part]) for kind, part in self.slices(roles, unused)]
        return self._parts[key]

    def slices(self, roles: frozenset[str], unused: frozenset[str]) -> list[tuple[str, slice]]:
        """The slices of these parts in the row."""
        key = (roles, unused)
        if key not in self._slices:
            entries = [entry for entry in self.space.entries if entry.role in roles and entry.name not in unused]
            self._slices[key] = [
                (kind, part)
                for kind in ("weight", "bias")
                for part in self.space.spans(entry.name for entry in entries if entry.kind == kind)
            ]
        return self._slices[key]

    def optimiser(
        self, roles: frozenset[str], config: TrainConfig, lr: float, unused: frozenset[str] = frozenset()
    ) -> Descent | torch.optim.Optimizer:
        """A fresh optimiser over the roles' slices of the row, but those of the parameters ``unused``."""
        decay = {"weight": config.weight_decay, "bias": config.weight_decay_bias}
        if config.optimizer == "sgd":
            return self._sgd([(part, decay[kind]) for kind, part in self.slices(roles, unused)], lr, config.momentum)
        groups = []
        for kind, row, grad in self.parts(roles, unused):
            flat = row.detach()
            flat.grad = grad
            groups.append({"params": [flat], "weight_decay": decay[kind]})
        if config.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=lr, fused=True)
        return torch.optim.Adam(groups, lr=lr, fused=True)

    @abstractmethod
    def _sgd(self, parts: Sequence[tuple[slice, float]], lr: float, momentum: float) -> Descent:
        """``torch.optim.SGD`` over slices of the row with their weight decay."""

    def gradient(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """``(p,)``: gradient of the cross-entropy summed over n samples, in evaluation mode; valid until the next."""
        self.set_trained(frozenset(), self.roles)
        self.grad.zero_()
        for samples, targets in zip(split(inputs, CHUNK), torch.split(labels, CHUNK), strict=True):
            logits = self.forward(self.shaped(samples), False).logits
            self.backward(F.cross_entropy(logits, targets, reduction="sum"), add=True)
        self.set_trained(frozenset())
        return self.grad
