"""A model in training and the batches it is shown (what :class:`fedpriv.parts.Learner` and ``Batch`` promise)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.config import TrainConfig
from fedpriv.models.net import Outputs
from fedpriv.parts import Learner, Phase, Step
from fedpriv.samples import Inputs, split
from fedpriv.simulation.resident import Resident


class ResidentLearner:
    """A resident net that learns, with a fresh optimiser for a phase."""

    def __init__(self, resident: Resident, phase: Phase, train: TrainConfig, lr: float) -> None:
        self.resident, self.row, self.grad, self.lr = resident, resident.row, resident.grad, lr
        self.trains = phase.trains
        self._clip = train.clip_grad_norm
        self._grads = [grad for _, _, grad in resident.parts(phase.trains)]
        self._optimiser = resident.optimiser(phase.trains, train, lr)
        resident.set_trained(phase.trains)

    def backward(self, value: Tensor) -> None:
        for grad in self._grads:
            grad.zero_()
        value.backward()  # type: ignore[no-untyped-call]

    def descend(self) -> None:
        if self._clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in self._grads]))
            for grad in self._grads:
                grad.mul_((self._clip / (norm + 1e-6)).clamp(max=1.0))  # as torch.nn.utils.clip_grad_norm_
        self._optimiser.step()


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
        resident = _resident(learner)
        outputs = [self._forward(resident, view) for view in self.views]
        return Step(
            self.labels,
            outputs[0],
            resident.parameters,
            self.received,
            self.trains,
            lambda name: self.teacher(self.index, self.views[0], name),
            outputs,
            self.memo,
        )

    @torch.no_grad()
    def look(self, learner: Learner) -> Outputs:
        resident = _resident(learner)
        before = {name: resident.views[name].clone() for name in resident.buffers}
        outputs = self._forward(resident, self.views[0])
        resident.space.pack(before, resident.row)
        return outputs

    def split(self, parts: int) -> Sequence[TurnBatch]:
        sizes = [len(part) for part in torch.tensor_split(self.index, parts)]
        columns = zip(*(split(column, sizes) for column in (self.index, self.labels, *self.views)), strict=True)
        rest = (self.cached, self.trains, self.received, self.memo, self.teacher)
        return [TurnBatch(index, views, labels, *rest) for index, labels, *views in columns]

    def _forward(self, resident: Resident, view: Inputs) -> Outputs:
        if self.cached and isinstance(view, Tensor):
            return resident.net.from_features(view)
        outputs: Outputs = resident.net(resident.shaped(view))
        return outputs


def _resident(learner: Learner) -> Resident:
    if not isinstance(learner, ResidentLearner):
        raise TypeError(f"a batch can be shown to the turn's learners, not to {type(learner).__name__}")
    return learner.resident
