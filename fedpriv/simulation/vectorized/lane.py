"""A client's place in a stack: the model that its turn is played on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.client.learner import ModelLearner, TurnBatch
from fedpriv.client.model import ClientModel, Descent
from fedpriv.interfaces import Batch, Learner, Loss
from fedpriv.models.net import Outputs
from fedpriv.samples import Inputs, split
from fedpriv.simulation.vectorized import requests
from fedpriv.simulation.vectorized.requests import Asked, Back, Leaves, Roles, Shared, Through, Whole

if TYPE_CHECKING:
    from fedpriv.simulation.vectorized.stack import Stack

TOGETHER = 160
"""Samples of all clients in a pass without gradient: of a net of 64 channels, more would not fit into a processor's cache."""


class Lane(ClientModel):
    """A client's place in a stack."""

    def __init__(self, stack: Stack, number: int) -> None:
        super().__init__(stack.space, stack.rows[number], stack.grads[number])
        self.stack, self.number = stack, number
        self.open: list[Shared] = []
        """Forward passes that it may go back through."""
        self._mode: tuple[Roles, Roles] = (frozenset(), frozenset())

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return Parameters(self)

    @property
    def own(self) -> tuple[dict[str, Tensor], Leaves]:
        """As :meth:`Stack.tensors`, of this lane alone."""
        return self.stack.tensors(slice(self.number, self.number + 1), self._mode[1])

    @property
    def frozen(self) -> Lane:
        return self.stack.other("frozen").lanes[self.number]

    @property
    def companion(self) -> Lane:
        return self.stack.other("companion").lanes[self.number]

    def set_trained(self, roles: Roles, differentiated: Roles | None = None) -> None:
        self._mode = (roles & self.roles, roles if differentiated is None else differentiated)

    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        return self._ask(inputs, "rest" if from_features else "net", half)

    def backward(self, value: Tensor, add: bool = False) -> None:
        self.stack.meeting.ask(requests.go_back, Back(self, value, add))

    def differentiate(self, batch: Batch, loss: Loss, learner: Learner) -> Tensor | None:
        assert isinstance(batch, TurnBatch) and isinstance(learner, ModelLearner)
        given: Tensor | None = self.stack.meeting.ask(requests.differentiate, Whole(self, batch, loss, self._mode, learner.half))
        return given

    @torch.no_grad()
    def features(self, inputs: Inputs) -> Tensor:
        self.set_trained(frozenset())
        chunk = max(1, TOGETHER // self.stack.meeting.size)
        return torch.cat([self._ask(part, "encoder").features for part in split(inputs, chunk)])

    @torch.no_grad()
    def from_features(self, features: Tensor) -> Outputs:
        self.set_trained(frozenset())
        return self._ask(features, "rest")

    def shaped(self, inputs: Inputs) -> Inputs:
        return inputs

    def _ask(self, inputs: Inputs, through: Through, half: bool = False) -> Outputs:
        assert isinstance(inputs, Tensor)
        answer = requests.train if self._mode[0] else requests.look
        given: Outputs = self.stack.meeting.ask(answer, Asked(self, inputs, through, self._mode, half))
        return given

    def _sgd(self, parts: Sequence[tuple[slice, float]], lr: float, momentum: float) -> LaneSGD:
        return LaneSGD(self, parts, lr, momentum)


class Parameters(Mapping[str, Tensor]):
    """A lane's parameters ``(*shape)``; as views with gradient only where somebody looks, which hardly any loss does."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._names = [entry.name for entry in lane.space.entries if entry.kind != "buffer"]

    def __getitem__(self, name: str) -> Tensor:
        tensors, leaves = self._lane.own
        self._lane.open.append(Shared(leaves, {id(self._lane)}))
        return tensors[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LaneSGD(Descent):
    """A client's ``torch.optim.SGD``, whose steps are taken together with the others'.

    Args:
        parts: slices of the row and their weight decay.
    """

    def __init__(self, lane: Lane, parts: Sequence[tuple[slice, float]], lr: float, momentum: float) -> None:
        self.lane, self.parts, self.momentum = lane, parts, momentum
        self.param_groups = [{"lr": lr}]
        self._parts = tuple((span.start, span.stop, decay) for span, decay in parts)
        if momentum:
            lane.stack.velocity[lane.number].zero_()

    def step(self) -> None:
        self.lane.stack.meeting.ask(requests.step, self)

    @property
    def kind(self) -> tuple[object, ...]:
        """What steps must agree in to be one."""
        return id(self.lane.stack), self._parts, self.param_groups[0]["lr"], self.momentum
