"""The model-contrastive loss with class centres (Li et al. 2022, eq. 5, with the minus sign that the paper omits)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.objectives.moon import model_contrast


def center_contrast(z: Tensor, centers: Tensor, labels: Tensor, negative: Tensor | None, tau: float) -> Tensor:
    """Pull ``z`` to the centre of its class and push it from ``negative``, per sample ``(B,)``.

    ``-log( exp(s+/tau) / (exp(s+/tau) + exp(s-/tau)) ) = softplus((s- - s+)/tau)`` with ``s+ = cos(z, centre of its class)``
    and ``s- = cos(z, negative)``. It is ln 2 where the two similarities are equal. Without a negative: ``(1 - s+)/tau``.

    Args:
        z: ``(B, k)`` projections, with gradient.
        centers: ``(C, k)`` class centres; constant.
        labels: ``(B,)`` class of each sample.
        negative: ``(B, k)`` the same samples under the frozen model; constant. ``None``: no negative.
        tau: temperature.
    """
    own = centers.detach()[labels]
    if negative is None:
        return (1 - F.cosine_similarity(z, own, dim=-1)) / tau
    return model_contrast(z, own, negative, tau)


def all_center_contrast(z: Tensor, centers: Tensor, labels: Tensor, valid: Tensor, negative: Tensor | None, tau: float) -> Tensor:
    """The loss with another reading of eq. 5's denominator: every valid class centre is a negative, too; per sample ``(B,)``.

    Args:
        valid: ``(C,)`` bool, which centres exist. The rest as in :func:`center_contrast`.
    """
    similarity = F.cosine_similarity(z[..., None, :], centers.detach(), dim=-1)
    positive = similarity.gather(-1, labels[..., None]).squeeze(-1)
    # A finite value for absent centres: the caller multiplies samples without a centre by 0, and 0 times inf would be NaN.
    denominator = similarity.masked_fill(~valid, -1e4)
    if negative is not None:
        denominator = torch.cat([denominator, F.cosine_similarity(z, negative.detach(), dim=-1)[..., None]], dim=-1)
    return torch.logsumexp(denominator / tau, dim=-1) - positive / tau
