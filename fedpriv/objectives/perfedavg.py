"""The client part of Per-FedAvg (Fallah et al., NeurIPS 2020, alg. 1): the gradient of the loss after one local step.

With independent batches ``D, D', D''``, inner rate ``a`` and half width ``e``::

    w' = w - a grad L(w; D),    v = grad L(w'; D')
    first order:   g = v
    Hessian-free:  g = v - a ( grad L(w + e v; D'') - grad L(w - e v; D'') ) / (2 e)

``g`` is what the client's optimiser gets (with learning rate, momentum and weight decay); the inner step is plain SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import Batch, Context, Learner, LocalUpdate, Loss, params
from fedpriv.objectives import register
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.optim.rates import decay_of_round
from fedpriv.seeding import kept_rng


@params
class PerFedAvgParams:
    """Options of Per-FedAvg's gradient."""

    variant: Literal["first_order", "hessian_free"] = Field(
        "first_order", description="leave out the Hessian term, or approximate it by a difference of gradients (sec. 5)"
    )
    a: float = Field(0.01, ge=0, description="rate of the inner step (the default of a public reimplementation)")
    e: float = Field(
        1e-3,
        gt=0,
        description="hessian_free: half width of the difference of gradients; ReLU kinks within it count as curvature",
    )


@register("perfedavg")
class MetaGradient(CrossEntropy):
    """Cross-entropy after one local step, by first-order or Hessian-free gradients.

    A step needs two (Hessian-free: three) independent batches of ``train.batch_size`` samples. If there are too few samples to
    split, all of them are used for each batch, so the batches are not independent.
    """

    paper = "Fallah et al., NeurIPS 2020"
    Params = PerFedAvgParams
    no_dp = "its steps combine gradients at several models, which per-sample clipping does not cover"

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        return {} if params.variant == "hessian_free" else {"e": f"variant={params.variant}"}

    def __init__(self, params: PerFedAvgParams, context: Context) -> None:
        super().__init__(params, context)
        self.batches_per_step = 3 if params.variant == "hessian_free" else 2

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        learner, rate = update.learner, inner_rate(self.params.a, self.context, update.round)
        first, second, *third = self._parts(batch)
        here = learner.row.clone()
        if rate:
            _differentiate(learner, first, loss)
            learner.row.copy_(self._moved(here, learner, -rate))
        value = _differentiate(learner, second, loss)
        outer_pass = learner.row.clone()
        if third and rate:
            outer, e = learner.grad.clone(), self.params.e
            ahead, behind = (self._moved(here, learner, by) for by in (e, -e))
            learner.row.copy_(ahead)
            with kept_rng():  # so that both gradients of the difference use the same dropout masks
                _differentiate(learner, third[0], loss)
            difference = learner.grad.clone()
            learner.row.copy_(behind)
            _differentiate(learner, third[0], loss)
            difference -= learner.grad
            learner.grad.copy_(outer - rate / (2 * e) * difference)
        learner.row.copy_(here)
        # Only the outer pass updates BatchNorm's statistics.
        for entry in self.context.space.entries:
            if entry.kind == "buffer":
                learner.row[entry.start : entry.stop] = outer_pass[entry.start : entry.stop]
        self.correct(update, learner)
        learner.descend()
        return value

    def _parts(self, batch: Batch) -> Sequence[Batch]:
        """The batches of a step; if they would be smaller than ``train.min_batch``, each is the whole batch."""
        parts = batch.split(self.batches_per_step)
        enough = all(len(part.labels) >= self.context.config.train.min_batch for part in parts)
        return parts if enough else [batch] * len(parts)

    def _moved(self, origin: Tensor, learner: Learner, by: float) -> Tensor:
        """``origin`` ``(p,)`` plus ``by`` times the learner's gradient; buffers and frozen roles do not change."""
        moved = origin.clone()
        for part in self.context.space.parameters(learner.trains):
            moved[part].add_(learner.grad[part], alpha=by)
        return moved


def _differentiate(learner: Learner, batch: Batch, loss: Loss) -> Tensor:
    """Set ``learner.grad`` to the gradient of the loss, and return the loss, detached."""
    value = loss(batch.forward(learner))
    learner.backward(value)
    return value.detach()


def inner_rate(a: float, context: Context, round: int) -> float:
    """The inner rate in a round, which decays as the learning rate does."""
    return a * decay_of_round(context.config.train, round)
