"""A model in training and the batches it is shown (what :class:`fedpriv.parts.Learner` and ``Batch`` promise)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.config import TrainConfig
from fedpriv.models.net import Outputs
from fedpriv.parts import Batch, Learner, Loss, Phase, Step
from fedpriv.samples import Inputs, split
from fedpriv.simulation.resident import Resident


class ResidentLearner:
    """A resident net that learns, with a fresh optimiser for a phase.

    Args:
        lr: the learning rate, or what it rises to in ``warmup`` steps.
        unused: parameters that no gradient reaches; nothing else, such as weight decay or noise, moves them either.
    """

    def __init__(
        self,
        resident: Resident,
        phase: Phase,
        train: TrainConfig,
        lr: float,
        warmup: int = 0,
        unused: frozenset[str] = frozenset(),
    ) -> None:
        self.resident, self.row, self.grad, self.lr = resident, resident.row, resident.grad, lr
        self.trains = phase.trains
        self._clip, self._accumulate, self._half = train.clip_grad_norm, train.accumulate, train.precision == "bfloat16"
        self._all_grads = [grad for _, _, grad in resident.parts(phase.trains)]
        self._grads = [grad for _, _, grad in resident.parts(phase.trains, unused)]
        self._optimiser = resident.optimiser(phase.trains, train, lr, unused)
        self._warmup, self._full_lr, self._taken = warmup, lr, 0
        if warmup:
            self._warm()
        resident.set_trained(phase.trains)

    def differentiate(self, batch: Batch, loss: Loss) -> Tensor:
        samples = len(batch.labels)
        if self._accumulate == 1 or samples < 2:
            value = loss(batch.under(self))
            self.backward(value)
            return value.detach()
        self._forget()
        total = torch.zeros_like(self.row[0])
        for part in batch.split(min(self._accumulate, samples)):
            value = loss(part.under(self)) * (len(part.labels) / samples)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total

    def backward(self, value: Tensor) -> None:
        self._forget()
        value.backward()  # type: ignore[no-untyped-call]

    def forward(self, inputs: Inputs, from_features: bool) -> Outputs:
        """The net's outputs in training mode, in the row's precision whatever the pass computes in."""
        if not self._half:
            return self._forward(inputs, from_features)
        with torch.autocast(self.resident.device.type, torch.bfloat16):
            half = self._forward(inputs, from_features)
        prediction = None if half.prediction is None else half.prediction.to(self.row)
        return Outputs(half.features.to(self.row), half.projection.to(self.row), prediction, half.logits.to(self.row))

    def _forward(self, inputs: Inputs, from_features: bool) -> Outputs:
        if from_features and isinstance(inputs, Tensor):
            return self.resident.net.from_features(inputs)
        outputs: Outputs = self.resident.net(self.resident.shaped(inputs))
        return outputs

    def descend(self) -> None:
        if self._clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in self._grads]))
            for grad in self._grads:
                grad.mul_((self._clip / (norm + 1e-6)).clamp(max=1.0))  # as torch.nn.utils.clip_grad_norm_
        self._optimiser.step()
        if self._warmup:
            self._taken += 1
            self._warm()

    def _warm(self) -> None:
        """The next step's rate, as ``transformers.get_constant_schedule_with_warmup`` has it: 0 for the first."""
        self.lr = self._full_lr * min(1.0, self._taken / self._warmup)
        for group in self._optimiser.param_groups:
            group["lr"] = self.lr

    def _forget(self) -> None:
        for grad in self._all_grads:
            grad.zero_()


@dataclass(frozen=True)
class TurnBatch:
    """The samples of one step, each view of them augmented on its own.

    Attributes:
        index: ``(B,)`` positions in the client's data.
        views: the inputs, or the features of a frozen encoder where ``cached``.
        teacher: (index, inputs, name) -> the outputs of a frozen model.
    """

    index: Tensor
    views: Sequence[Inputs]
    labels: Tensor
    cached: bool
    trains: frozenset[str]
    received: Mapping[str, Tensor]
    memo: Mapping[str, Tensor]
    teacher: Callable[[Tensor, Inputs, str], Outputs]

    def under(self, learner: Learner) -> Step:
        own = _resident(learner)
        outputs = [own.forward(view, self.cached) for view in self.views]
        return Step(
            self.labels,
            outputs[0],
            own.resident.parameters,
            self.received,
            self.trains,
            lambda name: self.teacher(self.index, self.views[0], name),
            outputs,
            self.memo,
        )

    @torch.no_grad()
    def look(self, learner: Learner) -> Outputs:
        own = _resident(learner)
        resident = own.resident
        before = {name: resident.views[name].clone() for name in resident.buffers}
        outputs = own.forward(self.views[0], self.cached)
        resident.space.pack(before, resident.row)
        return outputs

    def split(self, parts: int) -> Sequence[TurnBatch]:
        sizes = [len(part) for part in torch.tensor_split(self.index, parts)]
        columns = zip(*(split(column, sizes) for column in (self.index, self.labels, *self.views)), strict=True)
        rest = (self.cached, self.trains, self.received, self.memo, self.teacher)
        return [TurnBatch(index, views, labels, *rest) for index, labels, *views in columns]


def _resident(learner: Learner) -> ResidentLearner:
    if not isinstance(learner, ResidentLearner):
        raise TypeError(f"a batch can be shown to the turn's learners, not to {type(learner).__name__}")
    return learner
