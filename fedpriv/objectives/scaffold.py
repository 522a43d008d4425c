"""The client part of SCAFFOLD (Karimireddy et al., ICML 2020, alg. 1): gradients corrected by control variates.

    each step:  y <- y - lr (g(y) - c_k + c)
    afterwards: c_k <- the client's new control variate, whose change is uploaded

``c_k`` is the client's control variate, and ``c`` the mean over all clients. The server part decides which tensors have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, Context, Learner, LocalUpdate, Loss, params
from fedpriv.models.net import ROLES
from fedpriv.objectives import register
from fedpriv.objectives.base import Exchange
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.objectives.proximal import received_parameters
from fedpriv.wire import Form, statistic

VARIATE = "variate"
_CORRECTION, _GRADIENT, _SUM, _TAKEN, _DECAY = (
    f"scaffold.{what}" for what in ("correction", "gradient", "sum", "taken", "decay")
)


@params
class ScaffoldParams:
    """Options of SCAFFOLD's client part."""

    variate: Literal["mean", "II", "I"] = Field(
        "mean",
        description="the new control variate: the mean of the local update's gradients (option II, generalised to momentum and "
        "Adam); the formula of option II, for plain SGD only; or option I, the full gradient at the received model",
    )
    plain: bool = Field(
        False, description="under SGD, the corrected tensors are trained without train.momentum (FedPVR's script: true)"
    )


@register("scaffold")
class Scaffold(CrossEntropy):
    """Cross-entropy; gradients are corrected by control variates.

    Weight decay is part of the gradients in the control variates. Clipping (``train.clip_grad_norm``) acts after the correction,
    so that with option II the control variates are those of clipped steps.

    Raises:
        UsageError: option II with momentum or Adam, for which displacement / steps is not a mean gradient.
    """

    paper = "Karimireddy et al., ICML 2020"
    Params = ScaffoldParams
    reads = writes = frozenset({VARIATE})
    sends = "up, the change of its control variates: as many floats as corrected parameters"
    keeps = "its control variates: as many floats as corrected parameters"
    corrects = True
    no_dp = "clients upload control variates, which no noise covers"

    def __init__(self, params: ScaffoldParams, context: Context) -> None:
        super().__init__(params, context)
        train = context.config.train
        if params.variate == "II" and (train.optimizer != "sgd" or (train.momentum and not params.plain)):
            steps, plain = f"steps with momentum {train.momentum:g}", ""
            if train.optimizer != "sgd":
                steps, plain = f"{train.options.torch_name}'s steps", "train.optimizer=sgd and "
            raise UsageError(
                f"objective scaffold: variate II assumes plain SGD, but this run has {steps}; "
                f"use variate=mean (the same for plain SGD), or {plain}train.momentum=0"
            )
        self._drops_momentum = params.plain and train.optimizer == "sgd" and train.momentum > 0
        entries = context.space.entries
        spans = {role: [(e.start, e.stop) for e in entries if e.role == role] for role in ROLES}
        self._spans = {role: slice(parts[0][0], parts[-1][1]) for role, parts in spans.items() if parts}

    def begin(self, update: LocalUpdate) -> None:
        update.memo[_CORRECTION] = correction = torch.zeros_like(update.start)
        for name in self._corrected(update):
            view = self.context.space.view(correction, name)
            view.copy_(update.received[statistic(VARIATE, name)] - self._variate(update, name))
        update.memo[_DECAY] = self._decay(update)
        if self.params.variate == "I":
            update.memo[_GRADIENT] = update.gradient() + update.memo[_DECAY] * update.start
        update.memo[_SUM] = torch.zeros_like(update.start)
        update.memo[_TAKEN] = torch.zeros(len(self._spans), dtype=torch.float64)

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        learner = update.learner
        inputs = batch.forward(learner)
        value = loss(inputs)
        learner.backward(value)
        self._accumulate(update, learner, inputs.trains)
        self.correct(update, learner)
        if self._drops_momentum:
            self._descend(update, learner, inputs.trains)
        else:
            learner.descend()
        return value.detach()

    def without_momentum(self, received: Mapping[str, Tensor]) -> frozenset[str]:
        return frozenset(self._correctable(received)) if self._drops_momentum else frozenset()

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        learner.grad.add_(update.memo[_CORRECTION])

    def correction(
        self,
        received: Mapping[str, Tensor],
        earlier: Sequence[Exchange],
        examples: int | None,
    ) -> dict[str, Tensor]:
        """``c - c_k``, with ``c_k`` the sum of the changes that the client uploaded."""
        correction = {name: received[statistic(VARIATE, name)].clone() for name in self._correctable(received)}
        for name, tensor in correction.items():
            for _, uploaded in earlier:
                if (changed := uploaded.get(statistic(VARIATE, name))) is not None:
                    tensor -= changed
        return correction

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {statistic(VARIATE, name): new - self._variate(update, name) for name, new in self._new_variates(update).items()}

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        return {statistic(VARIATE, name): Form(self.context.space[name].shape) for name in self._correctable(received)}

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {_private_name(name): new for name, new in self._new_variates(update).items()}

    def _corrected(self, update: LocalUpdate) -> list[str]:
        return [name for name in self._correctable(update.received) if name not in update.unused]

    def _correctable(self, received: Mapping[str, Tensor]) -> list[str]:
        return [name for name in received_parameters(received, self.context.space) if statistic(VARIATE, name) in received]

    def _variate(self, update: LocalUpdate, name: str) -> Tensor:
        """``c_k`` of a tensor; zero when the client trains for the first time."""
        return update.private.get(_private_name(name), torch.zeros_like(self.context.space.view(update.start, name)))

    def _decay(self, update: LocalUpdate) -> Tensor:
        """The weight decay of each entry ``(p,)``; zero where it is not part of the gradient, as under AdamW."""
        train, row = self.context.config.train, torch.zeros_like(update.start)
        if not train.options.decays_in_gradient:
            return row
        for entry in self.context.space.entries:
            if entry.kind != "buffer":
                row[entry.start : entry.stop] = train.weight_decay if entry.kind == "weight" else train.weight_decay_bias
        return row

    def _accumulate(self, update: LocalUpdate, learner: Learner, trains: frozenset[str]) -> None:
        """Count the step and add its gradient, for each role that is trained."""
        memo, rule = update.memo, self.params.variate
        for index, (role, span) in enumerate(self._spans.items()):
            if role in trains:
                memo[_TAKEN][index] += learner.lr if rule == "II" else 1.0
                if rule == "mean":
                    memo[_SUM][span].add_(learner.grad[span]).addcmul_(memo[_DECAY][span], learner.row[span])

    def _new_variates(self, update: LocalUpdate) -> dict[str, Tensor]:
        """The new ``c_k`` by tensor; unchanged if no step was taken."""
        memo, space, rule = update.memo, self.context.space, self.params.variate
        taken = dict(zip(self._spans, memo[_TAKEN].tolist(), strict=True))
        if rule == "II":
            memo[_SUM] = update.start - update.row
        new: dict[str, Tensor] = {}
        for name in self._corrected(update):
            weight = taken[space[name].role]
            if rule == "I":
                new[name] = space.view(memo[_GRADIENT], name)
            elif not weight:
                new[name] = self._variate(update, name)
            else:
                new[name] = space.view(memo[_SUM], name) / weight
                if rule == "II":
                    new[name] = new[name] - space.view(memo[_CORRECTION], name)
        return new

    def _descend(self, update: LocalUpdate, learner: Learner, trains: frozenset[str]) -> None:
        """Step the corrected tensors by plain SGD, and all others by the optimiser."""
        train, space = self.context.config.train, self.context.space
        trained = [name for name in self._corrected(update) if space[name].role in trains]
        parts = [
            (span, decay, learner.row[span].clone())
            for kind, decay in (("weight", train.weight_decay), ("bias", train.weight_decay_bias))
            for span in space.spans(name for name in trained if space[name].kind == kind)
        ]
        lr = learner.lr
        learner.descend()
        for span, decay, before in parts:
            grad = learner.grad[span].add(before, alpha=decay) if decay else learner.grad[span]
            learner.row[span] = before.add_(grad, alpha=-lr)


def _private_name(name: str) -> str:
    return f"scaffold.{VARIATE}/{name}"
