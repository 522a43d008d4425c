"""MOON (Li et al., CVPR 2021, eq. 3): representations like the received model's, and unlike those of the client's last model.

L = CE - mu log( exp(s+ / tau) / (exp(s+ / tau) + exp(s- / tau)) )        s+ = cos(z, z_received),  s- = cos(z, z_last)
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import LocalUpdate, Step, params, stackable
from fedpriv.objectives import Objective, register
from fedpriv.objectives.cross_entropy import label_loss

_RECEIVED, _PREVIOUS = "moon.received", "moon.previous"
_SHORTEST = 1e-8
"""The norm that shorter vectors count as, as in ``F.cosine_similarity``."""


def model_contrast(z: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """The contrastive term of each sample ``(B,)``, ``softplus((s- - s+) / tau)``; ln 2 if both similarities are equal.

    The difference of the cosines is one product with the difference of the constant directions, in half the operations.

    Args:
        z: representations by the model in training ``(B, k)``, with gradient.
        received: by the received model ``(B, k)``; constant.
        previous: by the client's last model ``(B, k)``; constant.
        tau: temperature.
    """
    toward, away = (F.normalize(constant.detach(), dim=-1, eps=_SHORTEST) for constant in (received, previous))
    difference = (z * (away - toward)).sum(-1) / torch.linalg.vector_norm(z, dim=-1).clamp(min=_SHORTEST)
    return F.softplus(difference / tau)


@params
class MoonParams:
    """Options of MOON."""

    mu: float = Field(
        5.0, ge=0, description="weight of the contrastive term (paper: 5 for CIFAR-10, 1 for CIFAR-100, 10 for 100 clients)"
    )
    tau: float = Field(0.5, gt=0, description="temperature (paper)")


@register("moon")
class Moon(Objective):
    """Cross-entropy and a contrastive term: close to the received model, away from the client's last one.

    ``z`` is the projector's output, or the features if the net has no projector. Both reference models are frozen, in evaluation
    mode, and get the same augmented samples. There is no contrastive term when a client trains for the first time.
    """

    paper = "Li et al., CVPR 2021"
    Params = MoonParams
    keeps = "its last trained model: p floats"
    weighs_classes = True

    def begin(self, update: LocalUpdate) -> None:
        previous = update.private.get(_PREVIOUS)
        if previous is not None and self.params.mu:
            update.freeze(_RECEIVED)
            update.freeze(_PREVIOUS, previous)
            update.memo[_PREVIOUS] = previous

    @stackable
    def loss(self, step: Step) -> Tensor:
        loss = label_loss(step)
        if _PREVIOUS not in step.memo:
            return loss
        received, previous = (step.teacher(name).projection for name in (_RECEIVED, _PREVIOUS))
        contrast = model_contrast(step.outputs.projection, received, previous, self.params.tau)
        total: Tensor = loss + self.params.mu * contrast.mean(-1)
        return total

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {_PREVIOUS: update.row} if self.params.mu else {}
