"""SCAFFOLD's client (Karimireddy et al. 2020): gradients are corrected by the mean variate minus the client's.

    step:   y <- y - lr (g(y) - c_k + c)
    after:  c_k <- the client's new control variate; its change is uploaded

A tensor is corrected where the server sent both it and its variate c; the server's half determines which those are.
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
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.objectives.proximal import received_parameters
from fedpriv.wire import Form, statistic

VARIATE = "variate"
_CORRECTION, _GRADIENT, _SUM, _TAKEN, _DECAY = (
    f"scaffold.{what}" for what in ("correction", "gradient", "sum", "taken", "decay")
)


@params
class ScaffoldParams:
    """Options of SCAFFOLD's client."""

    variate: Literal["mean", "II", "I"] = Field(
        "mean",
        description="the new control variate: the mean of the round's raw gradients, which is option II for plain SGD and stays "
        "one with momentum and Adam; option II by its formula, plain SGD only; option I, the full gradient at the received model",
    )
    plain: bool = Field(False, description="under SGD, the corrected tensors step without train.momentum (FedPVR's script: true)")


@register("scaffold")
class Scaffold(CrossEntropy):
    """Cross-entropy; gradients are corrected by control variates.

    The variates are of the regularised loss: weight decay is part of the gradient, before the correction. A bound on the gradient
    (``train.clip_grad_norm``) acts after it, so with option II the variates are then of bounded steps.

    Raises:
        UsageError: option II under momentum or Adam, where displacement over steps is not a mean gradient.
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
            steps = "Adam's steps" if train.optimizer != "sgd" else f"steps with momentum {train.momentum:g}"
            plain = "train.optimizer=sgd and " if train.optimizer != "sgd" else ""
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
            view.copy_(update.received[statistic(VARIATE, name)] - self._own(update, name))
        update.memo[_DECAY] = self._decay(update)
        if self.params.variate == "I":
            update.memo[_GRADIENT] = update.gradient() + update.memo[_DECAY] * update.start
        update.memo[_SUM] = torch.zeros_like(update.start)
        update.memo[_TAKEN] = torch.zeros(len(self._spans), dtype=torch.float64)

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        learner = update.learner
        seen = batch.forward(learner)
        value = loss(seen)
        learner.backward(value)
        self._note(update, learner, seen.trains)
        self.correct(update, learner)
        if self._drops_momentum:
            self._descend(update, learner, seen.trains)
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
        earlier: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]],
        examples: int | None,
    ) -> dict[str, Tensor]:
        """c - c_k; c_k is the sum of the changes that the client uploaded."""
        found = {name: received[statistic(VARIATE, name)].clone() for name in self._correctable(received)}
        for name, tensor in found.items():
            for _, uploaded in earlier:
                if (changed := uploaded.get(statistic(VARIATE, name))) is not None:
                    tensor -= changed
        return found

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {statistic(VARIATE, name): new - self._own(update, name) for name, new in self._renewed(update).items()}

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        return {statistic(VARIATE, name): Form(self.context.space[name].shape) for name in self._correctable(received)}

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {_kept(name): new for name, new in self._renewed(update).items()}

    def _corrected(self, update: LocalUpdate) -> list[str]:
        return [name for name in self._correctable(update.received) if name not in update.unused]

    def _correctable(self, received: Mapping[str, Tensor]) -> list[str]:
        return [name for name in received_parameters(received, self.context.space) if statistic(VARIATE, name) in received]

    def _own(self, update: LocalUpdate, name: str) -> Tensor:
        """c_k of a tensor; zero before the client's first local update."""
        return update.private.get(_kept(name), torch.zeros_like(self.context.space.view(update.start, name)))

    def _decay(self, update: LocalUpdate) -> Tensor:
        """``(p,)``: the factor of weight decay of each entry, where decay is part of the gradient."""
        train, row = self.context.config.train, torch.zeros_like(update.start)
        if train.optimizer == "adamw":
            return row
        for entry in self.context.space.entries:
            if entry.kind != "buffer":
                row[entry.start : entry.stop] = train.weight_decay if entry.kind == "weight" else train.weight_decay_bias
        return row

    def _note(self, update: LocalUpdate, learner: Learner, trains: frozenset[str]) -> None:
        """Count the step, and add its raw gradient; by role, as a phase of a layered method trains only some roles."""
        memo, rule = update.memo, self.params.variate
        for index, (role, span) in enumerate(self._spans.items()):
            if role in trains:
                memo[_TAKEN][index] += learner.lr if rule == "II" else 1.0
                if rule == "mean":
                    memo[_SUM][span].add_(learner.grad[span]).addcmul_(memo[_DECAY][span], learner.row[span])

    def _renewed(self, update: LocalUpdate) -> dict[str, Tensor]:
        """The new c_k by tensor; unchanged where no step was taken."""
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
                new[name] = self._own(update, name)
            else:
                new[name] = space.view(memo[_SUM], name) / weight
                if rule == "II":
                    new[name] = new[name] - space.view(memo[_CORRECTION], name)
        return new

    def _descend(self, update: LocalUpdate, learner: Learner, trains: frozenset[str]) -> None:
        """A step of the optimiser, with plain SGD for the corrected tensors."""
        train, space = self.context.config.train, self.context.space
        moving = [name for name in self._corrected(update) if space[name].role in trains]
        parts = [
            (span, decay, learner.row[span].clone())
            for kind, decay in (("weight", train.weight_decay), ("bias", train.weight_decay_bias))
            for span in space.spans(name for name in moving if space[name].kind == kind)
        ]
        lr = learner.lr
        learner.descend()
        for span, decay, before in parts:
            grad = learner.grad[span].add(before, alpha=decay) if decay else learner.grad[span]
            learner.row[span] = before.add_(grad, alpha=-lr)


def _kept(name: str) -> str:
    return f"scaffold.{VARIATE}/{name}"
