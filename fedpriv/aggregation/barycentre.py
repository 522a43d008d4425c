"""Centres of K vectors for :mod:`fedpriv.aggregation.mean_shift`: FedDUAL's mean shift, and two Wasserstein barycentres.

Here the distance between two vectors is that between their entries as point masses on a line, whatever the entries' positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ADDED = 1e-10
"""Constant that the released code adds to the sum of the weights."""

Distances = Callable[[Tensor], Tensor]
"""A vector ``(d,)`` -> its distances to the clients' vectors ``(K,)``, in float64."""


@dataclass(frozen=True)
class Shift:
    """The result of a mean shift.

    Attributes:
        center: b ``(d,)``, in float64.
        weights: w ``(K,)``, in float64; they sum to one, or to less with the additive normaliser.
        iterations: number of iterations until convergence, or the limit.
        distances: ``(K,)`` from the weighted mean, the first b, to the vectors, in the vectors' unit.
        eps: width of the kernel, in the vectors' unit.
    """

    center: Tensor
    weights: Tensor
    iterations: int
    distances: Tensor
    eps: float


def combination(vectors: Tensor, weights: Tensor) -> Tensor:
    """``sum_k w_k v_k`` of ``(K, d)``: ``(d,)`` in float64. Vectors are converted one at a time."""
    total = torch.zeros(vectors.shape[1], dtype=torch.float64, device=vectors.device)
    for weight, vector in zip(weights.tolist(), vectors, strict=True):
        if weight:
            total.add_(vector.double(), alpha=weight)
    return total


def wasserstein(vectors: Tensor, p: int) -> Distances:
    """A function from a vector to its Wasserstein distances W_p to ``vectors`` ``(K, d)``, in the entries' unit.

    In one dimension W_p is the p-mean of the differences of the sorted entries. (POT's ``wasserstein_1d`` gives the same, but
    also handles weighted points and is 200 times slower for 10 x 161,280 entries.)
    """
    sorted_vectors = vectors.sort(1).values

    def distances(center: Tensor) -> Tensor:
        ranked = center.sort().values
        gaps = [float((ranked - other.double()).abs().pow(p).mean()) ** (1 / p) for other in sorted_vectors]
        return torch.tensor(gaps, dtype=torch.float64)

    return distances


def positional(vectors: Tensor) -> Distances:
    """A function from a vector to its mean absolute differences from ``vectors`` ``(K, d)``, entry by entry."""

    def distances(center: Tensor) -> Tensor:
        return torch.tensor([float((center - other.double()).abs().mean()) for other in vectors], dtype=torch.float64)

    return distances


def kernel_weights(distances: Tensor, base: Tensor, eps: float, normaliser: Literal["softmax", "additive"]) -> Tensor:
    """The weights ``w_k ~ lambda_k exp(-W_k / eps)`` ``(K,)``, in float64 (eq. 13).

    Args:
        distances: W ``(K,)``, not negative.
        base: lambda ``(K,)``, summing to one.
        eps: width of the kernel; 0 gives all weight to the vectors at distance 0.
        normaliser: softmax: the weights sum to one, even if the exponentials underflow. additive (released code): the weights are
            divided by their sum plus :data:`ADDED`, so that they vanish if all distances exceed about 23 eps.
    """
    exponents = torch.where(distances > 0, -distances / eps if eps > 0 else -math.inf, 0.0)
    if normaliser == "softmax":
        return torch.softmax(base.log() + exponents, 0)
    raw = base * exponents.exp()
    return raw / (raw.sum() + ADDED)


def mean_shift(
    vectors: Tensor,
    base: Tensor,
    distances: Distances,
    eps: float,
    relative: bool = False,
    normaliser: Literal["softmax", "additive"] = "softmax",
    iterations: int = 150,
) -> Shift:
    """Iterate eqs. 12-13, starting from the weighted mean, until b changes by less than 1e-12 of its largest entry.

    Args:
        vectors: v ``(K, d)``.
        base: lambda ``(K,)`` in float64, summing to one.
        eps: width of the kernel, in the vectors' unit.
        relative: eps is a multiple of the median distance to the weighted mean.
        iterations: the largest number of iterations.
    """
    center, weights = combination(vectors, base), base
    first = current = distances(center)
    if relative:
        eps = eps * float(first.quantile(0.5))
    done = 0
    while done < iterations:
        weights = kernel_weights(current, base, eps, normaliser)
        following = combination(vectors, weights)
        moved, size = float((following - center).abs().max()), float(center.abs().max())
        center, done = following, done + 1
        if moved <= 1e-12 * size:
            break
        current = distances(center)
    return Shift(center, weights, done, first, eps)


def quantile_barycenter(vectors: Tensor, base: Tensor) -> Tensor:
    """The W_2 barycentre of ``(K, d)``: the mean of the sorted vectors, in the order of the mean vector's entries ``(d,)``."""
    mean = combination(vectors, base)
    center = torch.empty_like(mean)
    center[mean.argsort(stable=True)] = combination(vectors.sort(1).values, base)
    return center


def gaussian_barycenter(vectors: Tensor, base: Tensor) -> Tensor:
    """The mean vector of ``(K, d)``, rescaled so that its entries have the clients' mean standard deviation ``(d,)``.

    Mean and standard deviation are then those of the W_2 barycentre of the clients' normal distributions.
    """
    mean = combination(vectors, base)
    spread = sum(weight * float(v.double().std(correction=0)) for weight, v in zip(base.tolist(), vectors, strict=True))
    spread_of_mean = float(mean.std(correction=0))
    return mean if spread_of_mean == 0 else mean.mean() + (mean - mean.mean()) * (spread / spread_of_mean)
