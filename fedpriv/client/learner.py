"""A model that is trained, and its batches (implements :class:`fedpriv.interfaces.Learner` and ``Batch``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.client.model import ClientModel
from fedpriv.client.sgd import SGD
from fedpriv.client.teachers import Teachers
from fedpriv.config import TrainConfig
from fedpriv.interfaces import CLASS_WEIGHTS, Batch, Learner, Loss, Phase, Step
from fedpriv.models.net import Outputs
from fedpriv.optim.by_name import restore, state_of
from fedpriv.samples import Inputs, split


class ModelLearner:
    """A client's model with the optimiser of a phase.

    Args:
        rates: the learning rate of each step; the last one holds for all further ones.
        unused: parameters that no gradient reaches, and that weight decay and noise do not change either.
        kept: the state that the optimiser goes on from (:meth:`optimiser_state`); empty: it begins anew.
    """

    def __init__(
        self,
        model: ClientModel,
        phase: Phase,
        train: TrainConfig,
        rates: Sequence[float],
        unused: frozenset[str] = frozenset(),
        kept: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self.row, self.grad, self.lr = model, model.row, model.grad, rates[0]
        self.trains = phase.trains
        self._clip, self._accumulate, self.half = train.clip_grad_norm, train.accumulate, train.precision == "bfloat16"
        self._grads = [grad for _, _, grad in model.parts(phase.trains, unused)]
        self._optimiser = model.optimiser(phase.trains, train, rates[0], unused)
        if kept:
            self._optimiser.restore(kept) if isinstance(self._optimiser, SGD) else restore(self._optimiser, kept)
        self._rates, self._steps = rates, 0
        model.set_trained(phase.trains)

    def differentiate(self, batch: Batch, loss: Loss) -> Tensor:
        samples = len(batch.labels)
        if self._accumulate == 1 or samples < 2:
            return self.model.differentiate(batch, loss, self)
        total = torch.zeros_like(self.row[0])
        for number, part in enumerate(batch.split(min(self._accumulate, samples))):
            value = loss(part.forward(self)) * (len(part.labels) / samples)
            self.model.backward(value, add=number > 0)
            total += value.detach()
        return total

    def backward(self, value: Tensor) -> None:
        self.model.backward(value)

    def forward(self, inputs: Inputs, from_features: bool) -> Outputs:
        """The net's outputs in training mode, in the precision of the model's row."""
        return self.model.forward(inputs, from_features, self.half)

    def step(self, batch: Batch, loss: Loss) -> Tensor:
        if self._clip is None and self._accumulate == 1:
            value = self.model.descend(batch, loss, self, self._optimiser)
            self._count()
        else:
            value = self.differentiate(batch, loss)
            self.descend()
        return value

    def descend(self) -> None:
        if self._clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in self._grads]))
            for grad in self._grads:
                grad.mul_((self._clip / (norm + 1e-6)).clamp(max=1.0))  # as torch.nn.utils.clip_grad_norm_
        self._optimiser.step()
        self._count()

    def optimiser_state(self) -> dict[str, Tensor]:
        """The optimiser's state, such as momentum or moments, by names of its own."""
        return self._optimiser.state() if isinstance(self._optimiser, SGD) else state_of(self._optimiser)

    def _count(self) -> None:
        """Set the next step's learning rate."""
        self._steps += 1
        if self._steps < len(self._rates):
            self.lr = self._rates[self._steps]
            for group in self._optimiser.param_groups:
                group["lr"] = self.lr


@dataclass(frozen=True)
class LocalBatch:
    """The samples of one step; each view of them is augmented independently.

    Attributes:
        index: ``(B,)`` positions in the client's data.
        views: the inputs, or, if ``cached``, the features of a frozen encoder.
        teachers: the frozen models of the local update.
    """

    index: Tensor
    views: Sequence[Inputs]
    labels: Tensor
    cached: bool
    trains: frozenset[str]
    received: Mapping[str, Tensor]
    memo: Mapping[str, Tensor]
    teachers: Teachers

    def forward(self, learner: Learner) -> Step:
        model_learner = _model_learner(learner)
        outputs = [model_learner.forward(view, self.cached) for view in self.views]
        return Step(
            self.labels,
            outputs[0],
            model_learner.model.parameters,
            self.received,
            self.trains,
            lambda name: self.teachers.outputs(name, self.index, self.views[0]),
            outputs,
            self.memo,
            self.memo.get(CLASS_WEIGHTS),
        )

    @torch.no_grad()
    def forward_no_grad(self, learner: Learner) -> Outputs:
        model_learner = _model_learner(learner)
        model = model_learner.model
        before = {name: model.views[name].clone() for name in model.buffers}
        outputs = model_learner.forward(self.views[0], self.cached)
        model.space.pack(before, model.row)
        return outputs

    def split(self, parts: int) -> Sequence[LocalBatch]:
        sizes = [len(part) for part in torch.tensor_split(self.index, parts)]
        columns = zip(*(split(column, sizes) for column in (self.index, self.labels, *self.views)), strict=True)
        rest = (self.cached, self.trains, self.received, self.memo, self.teachers)
        return [LocalBatch(index, views, labels, *rest) for index, labels, *views in columns]


def _model_learner(learner: Learner) -> ModelLearner:
    if not isinstance(learner, ModelLearner):
        raise TypeError(f"a batch runs through the learners of its local update, not through a {type(learner).__name__}")
    return learner
