"""Barlow Twins (Zbontar et al., ICML 2021): redundancy reduction between two views, without labels.

L = sum_i (C_ii - 1)^2 + lambda sum_{i != j} C_ij^2        with C the cross-correlation of the two views' projections
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import params
from fedpriv.objectives import register
from fedpriv.objectives.two_views import TwoViews

EPSILON = 1e-5
"""Added to the variance, as in BatchNorm, because the standard deviation of a constant batch has no gradient."""


def unbiased(z: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Standardise ``(B, D)`` over the batch by the unbiased standard deviation; L-DAWA's code does so with ``epsilon`` 0."""
    return (z - z.mean(0)) / (z.var(0) + epsilon).sqrt()


def batch_norm(z: Tensor) -> Tensor:
    """Standardise ``(B, D)`` over the batch by the biased standard deviation, as Zbontar et al. do."""
    return F.batch_norm(z, running_mean=None, running_var=None, training=True)


def cross_correlation_loss(
    first: Tensor, second: Tensor, weight: float, standardised: Callable[[Tensor], Tensor] = unbiased
) -> Tensor:
    """The loss of two views, with ``C = Z1^T Z2 / B`` of the standardised projections Z.

    With the unbiased standard deviation, ``C_ii`` is at most (B - 1) / B.

    Args:
        first, second: projections of the two views ``(B, D)``, B at least 2.
        weight: lambda.
        standardised: :func:`unbiased` or :func:`batch_norm`.
    """
    views = [standardised(z) for z in (first, second)]
    correlation = views[0].T @ views[1] / len(first)
    on_diagonal = torch.diagonal(correlation)
    off_diagonal = correlation - torch.diag(on_diagonal)
    return (on_diagonal - 1).square().sum() + weight * off_diagonal.square().sum()


@params
class BarlowTwinsParams:
    """Options of Barlow Twins' loss."""

    off_diagonal: float = Field(5e-3, ge=0, description="lambda, weight of the redundancy term (Zbontar et al.; L-DAWA's code)")
    standardise: Literal["unbiased", "batch_norm"] = Field(
        "unbiased",
        description="by the unbiased standard deviation of the batch (L-DAWA's code, here with 1e-5 added to the variance) or as "
        "BatchNorm does (Zbontar et al.)",
    )


@register("barlow-twins")
class BarlowTwins(TwoViews):
    """Two views of an image agree, and the dimensions of the projection are decorrelated; without labels."""

    paper = "Zbontar et al., ICML 2021; as in Rehman et al. (L-DAWA), ICCV 2023"
    Params = BarlowTwinsParams
    no_dp = "its loss correlates the samples of a batch, so there are no per-sample gradients"

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        standardised = batch_norm if self.params.standardise == "batch_norm" else unbiased
        return cross_correlation_loss(first, second, self.params.off_diagonal, standardised)
