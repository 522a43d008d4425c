"""The training of APFL (Deng et al., arXiv:2003.13461, alg. 1): a personal model in a mixture with the global one.

One step, with ``mix = alpha v + (1 - alpha) w`` and all values as before the step::

    w <- w - lr grad L(w)
    v <- v - lr alpha grad L(mix)                                   # alpha by the chain rule
    alpha <- clip(alpha - lr_alpha < grad L(mix), v - w >, 0, 1)    # if adaptive

``w`` is the global model, which is sent, and ``v`` the personal one. Each has its own optimiser, and weight decay acts on both.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import Batch, LocalUpdate, Loss, params
from fedpriv.objectives import register
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.parameters import ParameterSpace

PERSONAL, ALPHA = "apfl.personal", "apfl.alpha"
"""Private state: the personal model ``v`` as a row ``(p,)``, and ``alpha``, a scalar in float64."""


@params
class ApflParams:
    """Options of APFL's step."""

    alpha: float | None = Field(
        None,
        ge=0,
        le=1,
        description="weight of the personal model in the mixture; null: 0.75, or initially 0.5 if adaptive",
    )
    adaptive: bool = Field(False, description="whether each client also trains its alpha (sec. 4.2)")
    alpha_lr: float | None = Field(None, gt=0, description="learning rate of an adaptive alpha; null: the models'")


@register("apfl")
class Mixed(CrossEntropy):
    """Cross-entropy of the global model, and of its mixture with a personal one; for method apfl.

    Only parameters are mixed. BatchNorm's running statistics of the mixture are kept with the personal model.
    """

    paper = "Deng et al., arXiv:2003.13461"
    Params = ApflParams
    uses_companion = True
    keeps = "its personal model and alpha: p + 1 floats"
    no_dp = "its steps train two models on the same samples, and clipping and noise would cover only one"

    def initial_private(self, initial: Tensor) -> dict[str, Tensor]:
        alpha = (0.5 if self.params.adaptive else 0.75) if self.params.alpha is None else self.params.alpha
        return {PERSONAL: initial.clone(), ALPHA: torch.tensor(alpha, dtype=torch.float64)}

    def begin(self, update: LocalUpdate) -> None:
        update.memo[ALPHA] = update.private[ALPHA].clone()

    def epoch(self, update: LocalUpdate, epoch: int) -> None:
        if PERSONAL not in update.memo:  # the companion exists only within a phase
            update.companion.row.copy_(update.private[PERSONAL])
            update.memo[PERSONAL] = update.companion.row

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        shared, other, alpha = update.learner, update.companion, float(update.memo[ALPHA])
        space = self.context.space
        start, personal = shared.row.clone(), other.row.clone()
        value = loss(batch.forward(shared))
        shared.backward(value)
        other.row.copy_(mixed(space, start, personal, alpha))
        other.backward(loss(batch.forward(other)))
        for part in space.parameters():
            other.row[part] = personal[part]
        if self.params.adaptive:
            difference, trained = personal - start, space.parameters(other.trains)
            slope = sum(float(other.grad[part].double() @ difference[part].double()) for part in trained)
            update.memo[ALPHA].sub_((self.params.alpha_lr or shared.lr) * slope).clamp_(0, 1)
        other.grad.mul_(alpha)
        self.correct(update, shared)
        shared.descend()
        other.descend()
        return value.detach()

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {PERSONAL: update.memo.get(PERSONAL, update.private[PERSONAL]), ALPHA: update.memo[ALPHA]}


def mixed(space: ParameterSpace, shared: Tensor, personal: Tensor, alpha: float) -> Tensor:
    """The mixture ``alpha personal + (1 - alpha) shared`` ``(p,)`` of the parameters, with the personal model's buffers."""
    row = personal.clone()
    for part in space.parameters():
        row[part] = alpha * personal[part] + (1 - alpha) * shared[part]
    return row
