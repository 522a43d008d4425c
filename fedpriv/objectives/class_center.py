"""MpFedcon's contrast with class centres (Li et al., Wuhan Univ. J. Nat. Sci. 27(6), 2022, eq. 5).

    -log( exp(s+ / tau) / (exp(s+ / tau) + exp(s- / tau)) )        s+ = cos(z, centre of its class),  s- = cos(z, negative)

The paper omits the minus sign.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.objectives.moon import model_contrast


def center_contrast(z: Tensor, centers: Tensor, labels: Tensor, negative: Tensor | None, tau: float) -> Tensor:
    """The loss of each sample ``(B,)``: ``softplus((s- - s+) / tau)``, or ``(1 - s+) / tau`` without a negative.

    Args:
        z: projections ``(B, k)``, with gradient.
        centers: class centres ``(C, k)``; constant.
        labels: classes ``(B,)``.
        negative: projections of the same samples by a frozen model ``(B, k)``; ``None``: no negative.
        tau: temperature.
    """
    positive = centers.detach()[labels]
    if negative is None:
        return (1 - F.cosine_similarity(z, positive, dim=-1)) / tau
    return model_contrast(z, positive, negative, tau)


def all_center_contrast(z: Tensor, centers: Tensor, labels: Tensor, valid: Tensor, negative: Tensor | None, tau: float) -> Tensor:
    """The loss of each sample ``(B,)`` with all existing centres in the denominator, another reading of eq. 5.

    Args:
        valid: which centres exist ``(C,)``; the other arguments as in :func:`center_contrast`.
    """
    similarity = F.cosine_similarity(z[..., None, :], centers.detach(), dim=-1)
    positive = similarity.gather(-1, labels[..., None]).squeeze(-1)
    # Not -inf for absent centres: the caller drops samples without a centre by torch.where, whose gradient would be NaN.
    denominator = similarity.masked_fill(~valid, -1e4)
    if negative is not None:
        denominator = torch.cat([denominator, F.cosine_similarity(z, negative.detach(), dim=-1)[..., None]], dim=-1)
    return torch.logsumexp(denominator / tau, dim=-1) - positive / tau
