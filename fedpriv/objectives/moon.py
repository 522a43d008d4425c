"""MOON (Li et al. 2021): representations are drawn to the received model's and away from those of the client's last model."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import LocalUpdate, Step, params, stackable
from fedpriv.objectives import Objective, register
from fedpriv.objectives.cross_entropy import cross_entropy

_RECEIVED, _PREVIOUS = "moon.received", "moon.previous"


def model_contrast(z: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """``-log( exp(s+/tau) / (exp(s+/tau) + exp(s-/tau)) ) = softplus((s- - s+)/tau)`` per sample ``(B,)``.

    ``s+ = cos(z, received)``, ``s- = cos(z, previous)``; ln 2 where the two are equal.

    Args:
        z: ``(B, k)`` under the trained model, with gradient.
        received: ``(B, k)`` the same samples under the received model; constant.
        previous: ``(B, k)`` under the client's last own model; constant.
        tau: temperature.
    """
    positive = F.cosine_similarity(z, received.detach(), dim=-1)
    negative = F.cosine_similarity(z, previous.detach(), dim=-1)
    return F.softplus((negative - positive) / tau)


@params
class MoonParams:
    """Options of MOON."""

    mu: float = Field(
        5.0, ge=0, description="weight of the contrastive term (paper: 5 CIFAR-10, 1 CIFAR-100; 10 for 100 clients)"
    )
    tau: float = Field(0.5, gt=0, description="temperature (paper)")


@register("moon")
class Moon(Objective):
    """Cross-entropy, and a contrastive term: near the received model, away from the client's last one.

    ``z`` is the head's input: the projector's output, or the features of a net without one. Both reference models are frozen and
    in evaluation mode, on the same augmented samples. A client's first local update has no last model, and so no contrastive
    term.
    """

    paper = "Li et al., CVPR 2021"
    Params = MoonParams
    keeps = "its last model as trained: p floats"

    def begin(self, update: LocalUpdate) -> None:
        previous = update.private.get(_PREVIOUS)
        if previous is not None and self.params.mu:
            update.freeze(_RECEIVED)
            update.freeze(_PREVIOUS, previous)
            update.memo[_PREVIOUS] = previous

    @stackable
    def loss(self, step: Step) -> Tensor:
        loss = cross_entropy(step)
        if _PREVIOUS not in step.memo:
            return loss
        received, previous = (step.teacher(name).projection for name in (_RECEIVED, _PREVIOUS))
        contrast = model_contrast(step.outputs.projection, received, previous, self.params.tau)
        total: Tensor = loss + self.params.mu * contrast.mean(-1)
        return total

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {_PREVIOUS: update.row} if self.params.mu else {}
