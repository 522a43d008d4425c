"""A client's model during training: its state and gradient as rows, and the passes through the net.

:class:`fedpriv.client.resident.Resident` trains one client at a time,
:class:`fedpriv.simulation.vectorized.batched_client.BatchedClient` is one of several clients that train as one net.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.client.sgd import SGD
from fedpriv.config import TrainConfig
from fedpriv.interfaces import Batch, Learner, Loss
from fedpriv.models.net import Outputs
from fedpriv.objectives.cross_entropy import loss_on
from fedpriv.optim.by_name import torch_optimiser
from fedpriv.parameters import ParameterSpace
from fedpriv.samples import Inputs, split

CHUNK = 128
"""Samples per forward pass without gradient; small enough for the activations to stay in the processor's cache."""

Parts = list[tuple[str, Tensor, Tensor]]
"""Kind (weight or bias), values and gradient of slices of a row."""
Optimiser = SGD | torch.optim.Optimizer


class ClientModel(ABC):
    """A model whose state and gradient are two rows ``(p,)``; writing into them changes the model."""

    def __init__(self, space: ParameterSpace, row: Tensor, grad: Tensor) -> None:
        self.space, self.row, self.grad = space, row, grad
        self.views = space.unpack(row)
        self.roles = frozenset(entry.role for entry in space.entries)
        """The roles with tensors in the state; the others are constant."""
        self.buffers = tuple(entry.name for entry in space.entries if entry.kind == "buffer")
        self._parts: dict[tuple[frozenset[str], frozenset[str]], Parts] = {}

    @property
    def device(self) -> torch.device:
        return self.row.device

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters by name, with gradient if their role is differentiated."""

    @property
    @abstractmethod
    def frozen(self) -> ClientModel:
        """A second model of the same net, for teachers; made on first use, always in evaluation mode."""

    @property
    @abstractmethod
    def companion(self) -> ClientModel:
        """A third model of the same net, which is trained beside the first; made on first use."""

    @abstractmethod
    def set_trained(self, roles: frozenset[str], differentiated: frozenset[str] | None = None) -> None:
        """Train ``roles``, and freeze the others: no gradient, evaluation mode.

        Args:
            differentiated: the roles that have a gradient; ``None``: the trained ones.
        """

    @abstractmethod
    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        """The outputs for B samples, or for features ``(B, d)`` of a frozen encoder, in the mode that was set.

        Args:
            half: compute in bfloat16 (``torch.autocast``).
        """

    @abstractmethod
    def backward(self, value: Tensor, add: bool = False) -> None:
        """Compute the gradient of a scalar of :meth:`forward`'s outputs; it replaces the previous one, or is added to it."""

    def differentiate(self, batch: Batch, loss: Loss, learner: Learner) -> Tensor:
        """Compute the gradient of a loss on a batch, and return the loss, detached."""
        value = loss(batch.forward(learner))
        self.backward(value)
        return value.detach()

    def descend(self, batch: Batch, loss: Loss, learner: Learner, optimiser: Optimiser) -> Tensor:
        """:meth:`differentiate`, then take a step of the optimiser."""
        value = self.differentiate(batch, loss, learner)
        optimiser.step()
        return value

    @abstractmethod
    def features(self, inputs: Inputs) -> Tensor:
        """Encoder features ``(n, d)`` of n samples, in evaluation mode, without gradient."""

    @abstractmethod
    def from_features(self, features: Tensor) -> Outputs:
        """Outputs for features ``(n, d)``, in evaluation mode, without gradient."""

    @abstractmethod
    def shaped(self, inputs: Inputs) -> Inputs:
        """Samples in the memory layout that :meth:`forward` is fastest on."""

    def parts(self, roles: frozenset[str], unused: frozenset[str] = frozenset()) -> Parts:
        """Kind (weight or bias), values and gradient of the roles' slices of the row, adjacent ones merged.

        Args:
            unused: parameters that are left out.
        """
        key = (roles, unused)
        if key not in self._parts:
            entries = [entry for entry in self.space.entries if entry.role in roles and entry.name not in unused]
            self._parts[key] = [
                (kind, self.row[part], self.grad[part])
                for kind in ("weight", "bias")
                for part in self.space.spans(entry.name for entry in entries if entry.kind == kind)
            ]
        return self._parts[key]

    def optimiser(self, roles: frozenset[str], config: TrainConfig, lr: float, unused: frozenset[str] = frozenset()) -> Optimiser:
        """A new optimiser over the roles' slices of the row, without the parameters ``unused``."""
        decay = {"weight": config.weight_decay, "bias": config.weight_decay_bias}
        if config.heavy_ball:
            parts = [(values, grad, decay[kind]) for kind, values, grad in self.parts(roles, unused)]
            return self._sgd(parts, lr, config.momentum)
        groups = []
        for kind, row, grad in self.parts(roles, unused):
            flat = row.detach()
            flat.grad = grad
            groups.append({"params": [flat], "weight_decay": decay[kind]})
        return torch_optimiser(config, groups, lr, fused=True)

    def _sgd(self, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> SGD:
        """SGD over slices of the row: values, gradient and weight decay."""
        return SGD(parts, lr, momentum)

    def gradient(self, inputs: Inputs, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The gradient ``(p,)`` of the loss on the labels summed over n samples, in evaluation mode; valid until the next call.

        Args:
            weights: of the classes ``(C,)``.
        """
        self.set_trained(frozenset(), self.roles)
        self.grad.zero_()
        for samples, targets in zip(split(inputs, CHUNK), torch.split(labels, CHUNK), strict=True):
            logits = self.forward(self.shaped(samples), False).logits
            self.backward(loss_on(logits, targets, weights, reduction="sum"), add=True)
        self.set_trained(frozenset())
        return self.grad
