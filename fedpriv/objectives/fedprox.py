"""FedProx (Li et al., MLSys 2020, eq. 2): a proximal term to the received model.

    L(x) = CE(x) + mu/2 ||x - x_g||^2        with x_g the model received this round

The gradient of the term, ``mu (x - x_g)``, enters before momentum or Adam's moments. It covers the parameters that were received,
and no buffers.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedpriv.interfaces import PROXIMAL, Learner, LocalUpdate, params
from fedpriv.objectives import register
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.objectives.proximal import on_received, pull

_STRENGTH = "fedprox.strength"


@params
class FedProxParams:
    """Options of FedProx."""

    mu: float = Field(
        0.01, ge=0, description="weight of the proximal term (paper: 0.001 to 1, by data set; FedRep's comparison: 0.1)"
    )


@register("fedprox")
class FedProx(CrossEntropy):
    """Cross-entropy and a proximal term to the received model."""

    paper = "Li et al., MLSys 2020"
    Params = FedProxParams

    def begin(self, update: LocalUpdate) -> None:
        if self.params.mu:
            update.memo[_STRENGTH] = on_received(update, self.context.space, self.params.mu)
            update.memo[PROXIMAL] = torch.tensor(self.params.mu, dtype=torch.float64)

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        if _STRENGTH in update.memo:
            pull(learner, update.memo[_STRENGTH], update.start)
