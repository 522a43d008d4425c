"""A client's model among several that are computed as one net."""

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
"""Samples of all clients in a pass without gradient. At 64 channels, more do not fit into a processor's cache."""


class BatchedClient(ClientModel):
    """A client's model: one row of the matrix of :class:`BatchedModels`."""

    def __init__(self, models: BatchedModels, number: int) -> None:
        super().__init__(models.space, models.rows[number], models.grads[number])
        self.models, self.number = models, number
        self.open_passes: list[SharedPass] = []
        """Forward passes that its next backward pass may go through."""
        self._mode: tuple[Roles, Roles] = (frozenset(), frozenset())

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return Parameters(self)

    @property
    def tensors(self) -> tuple[dict[str, Tensor], Leaves]:
        """As :meth:`BatchedModels.tensors`, of this client alone."""
        return self.models.tensors(slice(self.number, self.number + 1), self._mode[1])

    @property
    def frozen(self) -> BatchedClient:
        return self.models.other("frozen").clients[self.number]

    @property
    def companion(self) -> BatchedClient:
        return self.models.other("companion").clients[self.number]

    def set_trained(self, roles: Roles, differentiated: Roles | None = None) -> None:
        self._mode = (roles & self.roles, roles if differentiated is None else differentiated)

    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        return self._forward(inputs, "rest" if from_features else "net", half)

    def backward(self, value: Tensor, add: bool = False) -> None:
        self.models.scheduler.submit(requests.backward, BackwardPass(self, value, add))

    def differentiate(self, batch: Batch, loss: Loss, learner: Learner) -> Tensor:
        value = self._in_one_request(batch, loss, learner, None)
        return super().differentiate(batch, loss, learner) if value is None else value

    def descend(self, batch: Batch, loss: Loss, learner: Learner, optimiser: Optimiser) -> Tensor:
        if not isinstance(optimiser, BatchedClientSGD):
            return super().descend(batch, loss, learner, optimiser)
        value = self._in_one_request(batch, loss, learner, optimiser)
        if value is None:
            value = super().differentiate(batch, loss, learner)
            optimiser.step()
        return value

    def _in_one_request(self, batch: Batch, loss: Loss, learner: Learner, optimiser: BatchedClientSGD | None) -> Tensor | None:
        """Loss and gradient, and a step of an optimiser, in one request; ``None``: they have to be requested one by one."""
        assert isinstance(batch, LocalBatch) and isinstance(learner, ModelLearner)
        request = GradientPass(self, batch, loss, self._mode, learner.half, optimiser)
        value: Tensor | None = self.models.scheduler.submit(requests.differentiate, request)
        return value

    @torch.no_grad()
    def features(self, inputs: Inputs) -> Tensor:
        self.set_trained(frozenset())
        chunk = max(1, SAMPLES_PER_PASS // self.models.scheduler.size)
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
        outputs: Outputs = self.models.scheduler.submit(handler, ForwardPass(self, inputs, section, self._mode, half))
        return outputs

    def _sgd(self, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> BatchedClientSGD:
        return BatchedClientSGD(self, parts, lr, momentum)


class Parameters(Mapping[str, Tensor]):
    """A client's parameters by name, with gradient; created on access, as hardly any loss reads them."""

    def __init__(self, client: BatchedClient) -> None:
        self._client = client
        self._names = [entry.name for entry in client.space.entries if entry.kind != "buffer"]

    def __getitem__(self, name: str) -> Tensor:
        tensors, leaves = self._client.tensors
        self._client.open_passes.append(SharedPass(leaves, {id(self._client)}))
        return tensors[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class BatchedClientSGD(SGD):
    """A client's SGD, whose steps are requests: those of several clients are taken at once."""

    def __init__(self, client: BatchedClient, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> None:
        super().__init__(parts, lr, momentum)
        self._scheduler = client.models.scheduler

    def step(self) -> None:
        self._scheduler.submit(requests.step, self)
