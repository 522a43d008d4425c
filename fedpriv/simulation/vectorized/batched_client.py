"""A client's model within a stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.client.learner import LocalBatch, ModelLearner
from fedpriv.client.model import ClientModel, Optimiser
from fedpriv.client.sgd import SGD
from fedpriv.interfaces import Batch, Learner, Loss
from fedpriv.models.net import Outputs
from fedpriv.samples import Inputs, split
from fedpriv.simulation.vectorized import requests
from fedpriv.simulation.vectorized.requests import BackwardPass, ForwardPass, GradientPass, Leaves, Roles, Section, SharedPass

if TYPE_CHECKING:
    from fedpriv.simulation.vectorized.batched_models import BatchedModels

SAMPLES_PER_PASS = 160
"""Samples of all clients in a pass without gradient; at 64 channels, more would not fit into a processor's cache."""


class BatchedClient(ClientModel):
    """A client's model within a stack: one row of its matrix."""

    def __init__(self, stack: BatchedModels, number: int) -> None:
        super().__init__(stack.space, stack.rows[number], stack.grads[number])
        self.stack, self.number = stack, number
        self.open_passes: list[SharedPass] = []
        """Forward passes that its next backward may go through."""
        self._mode: tuple[Roles, Roles] = (frozenset(), frozenset())

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return Parameters(self)

    @property
    def own(self) -> tuple[dict[str, Tensor], Leaves]:
        """As :meth:`BatchedModels.tensors`, of this lane alone."""
        return self.stack.tensors(slice(self.number, self.number + 1), self._mode[1])

    @property
    def frozen(self) -> BatchedClient:
        return self.stack.other("frozen").lanes[self.number]

    @property
    def companion(self) -> BatchedClient:
        return self.stack.other("companion").lanes[self.number]

    def set_trained(self, roles: Roles, differentiated: Roles | None = None) -> None:
        self._mode = (roles & self.roles, roles if differentiated is None else differentiated)

    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        return self._forward(inputs, "rest" if from_features else "net", half)

    def backward(self, value: Tensor, add: bool = False) -> None:
        self.stack.scheduler.submit(requests.backward, BackwardPass(self, value, add))

    def differentiate(self, batch: Batch, loss: Loss, learner: Learner) -> Tensor:
        value = self._together(batch, loss, learner, None)
        return super().differentiate(batch, loss, learner) if value is None else value

    def descend(self, batch: Batch, loss: Loss, learner: Learner, optimiser: Optimiser) -> Tensor:
        if not isinstance(optimiser, BatchedClientSGD):
            return super().descend(batch, loss, learner, optimiser)
        value = self._together(batch, loss, learner, optimiser)
        if value is None:
            value = super().differentiate(batch, loss, learner)
            optimiser.step()
        return value

    def _together(self, batch: Batch, loss: Loss, learner: Learner, optimiser: BatchedClientSGD | None) -> Tensor | None:
        """Loss and gradient, and a step of an optimiser, in one request; ``None``: the lane has to take them by itself."""
        assert isinstance(batch, LocalBatch) and isinstance(learner, ModelLearner)
        request = GradientPass(self, batch, loss, self._mode, learner.half, optimiser)
        value: Tensor | None = self.stack.scheduler.submit(requests.differentiate, request)
        return value

    @torch.no_grad()
    def features(self, inputs: Inputs) -> Tensor:
        self.set_trained(frozenset())
        chunk = max(1, SAMPLES_PER_PASS // self.stack.scheduler.size)
        return torch.cat([self._forward(part, "encoder").features for part in split(inputs, chunk)])

    @torch.no_grad()
    def from_features(self, features: Tensor) -> Outputs:
        self.set_trained(frozenset())
        return self._forward(features, "rest")

    def shaped(self, inputs: Inputs) -> Inputs:
        return inputs

    def _forward(self, inputs: Inputs, section: Section, half: bool = False) -> Outputs:
        assert isinstance(inputs, Tensor)
        handler = requests.forward_training if self._mode[0] else requests.forward_evaluation
        outputs: Outputs = self.stack.scheduler.submit(handler, ForwardPass(self, inputs, section, self._mode, half))
        return outputs

    def _sgd(self, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> BatchedClientSGD:
        return BatchedClientSGD(self, parts, lr, momentum)


class Parameters(Mapping[str, Tensor]):
    """A lane's parameters ``(*shape)``; created, with gradient, only on access: hardly any loss reads them."""

    def __init__(self, lane: BatchedClient) -> None:
        self._lane = lane
        self._names = [entry.name for entry in lane.space.entries if entry.kind != "buffer"]

    def __getitem__(self, name: str) -> Tensor:
        tensors, leaves = self._lane.own
        self._lane.open_passes.append(SharedPass(leaves, {id(self._lane)}))
        return tensors[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class BatchedClientSGD(SGD):
    """A client's SGD; the scheduler takes the steps of several clients at once."""

    def __init__(self, lane: BatchedClient, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> None:
        super().__init__(parts, lr, momentum)
        self._scheduler = lane.stack.scheduler

    def step(self) -> None:
        self._scheduler.submit(requests.step, self)
