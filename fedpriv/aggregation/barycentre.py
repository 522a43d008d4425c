"""Centres of K vectors as bags of entries: FedDUAL's mean shift (eqs. 12-13) and two true barycentres."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ADDED = 1e-10
"""What the released code adds to the sum of the kernel's weights."""

Distances = Callable[[Tensor], Tensor]
"""``b`` ``(d,)`` -> its distance to each client's vector ``(K,)``, float64."""


@dataclass(frozen=True)
class Shift:
    """The result of a mean shift.

    Attributes:
        center: ``(d,)`` b, float64.
        weights: ``(K,)`` w, float64; they sum to one, or to less with the additive normaliser.
        iterations: number until b converged, or the limit.
        distances: ``(K,)`` of the first b, the weighted mean, to the vectors; in the vectors' unit.
        eps: the kernel's width, in the vectors' unit.
    """

    center: Tensor
    weights: Tensor
    iterations: int
    distances: Tensor
    eps: float


def combination(vectors: Tensor, weights: Tensor) -> Tensor:
    """``sum_k w_k v_k`` of ``(K, d)`` in float64, ``(d,)``; vectors are converted one at a time."""
    total = torch.zeros(vectors.shape[1], dtype=torch.float64, device=vectors.device)
    for weight, vector in zip(weights.tolist(), vectors, strict=True):
        if weight:
            total.add_(vector.double(), alpha=weight)
    return total


def wasserstein(vectors: Tensor, p: int) -> Distances:
    """Distance W_p, in the entries' unit, between the entries of a vector and those of each of ``vectors`` ``(K, d)``.

    Between equally many points on a line it is the p-mean of the differences of the sorted entries. The vectors are sorted
    once. (POT's ``wasserstein_1d`` is for weighted points: 200 times slower at 10 x 161,280, and equal.)
    """
    in_order = vectors.sort(1).values

    def distances(center: Tensor) -> Tensor:
        ranked = center.sort().values
        gaps = [float((ranked - other.double()).abs().pow(p).mean()) ** (1 / p) for other in in_order]
        return torch.tensor(gaps, dtype=torch.float64)

    return distances


def positional(vectors: Tensor) -> Distances:
    """Mean absolute difference position by position; unlike :func:`wasserstein`, it depends on the positions of the entries."""

    def distances(center: Tensor) -> Tensor:
        return torch.tensor([float((center - other.double()).abs().mean()) for other in vectors], dtype=torch.float64)

    return distances


def kernel_weights(distances: Tensor, base: Tensor, eps: float, normaliser: Literal["softmax", "additive"]) -> Tensor:
    """``w_k ~ base_k exp(-W_k / eps)``, ``(K,)`` in float64.

    Args:
        distances: ``(K,)`` W, not negative.
        base: ``(K,)`` lambda, summing to one.
        eps: width of the kernel; 0: its limit, all weight on the vectors at distance 0.
        normaliser: softmax: they sum to one, even where exponentials underflow. additive: divided by their sum plus
            :data:`ADDED`, so they sum to about 0 where every distance is above some 23 eps (released code).
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
    """Iterate eqs. 12-13 from the weighted mean until b converges (to 1e-12 of its largest entry), at most ``iterations`` times.

    Args:
        vectors: ``(K, d)`` v.
        base: ``(K,)`` lambda in float64, summing to one.
        eps: width of the kernel, in the vectors' unit.
        relative: eps is in units of the median distance at the first iteration, and fixed from then on.
    """
    center, weights = combination(vectors, base), base
    first = found = distances(center)
    if relative:
        eps = eps * float(first.quantile(0.5))
    done = 0
    while done < iterations:
        weights = kernel_weights(found, base, eps, normaliser)
        following = combination(vectors, weights)
        moved, size = float((following - center).abs().max()), float(center.abs().max())
        center, done = following, done + 1
        if moved <= 1e-12 * size:
            break
        found = distances(center)
    return Shift(center, weights, done, first, eps)


def quantile_barycenter(vectors: Tensor, base: Tensor) -> Tensor:
    """The W_2 barycentre of the entries of ``(K, d)``, the mean of the sorted vectors, placed by their mean's ranks; ``(d,)``."""
    mean = combination(vectors, base)
    placed = torch.empty_like(mean)
    placed[mean.argsort(stable=True)] = combination(vectors.sort(1).values, base)
    return placed


def gaussian_barycenter(vectors: Tensor, base: Tensor) -> Tensor:
    """The mean of ``(K, d)``, scaled to the Bures barycentre of the entries' normal distributions; ``(d,)``.

    In one dimension its mean and standard deviation are the means of the clients'.
    """
    mean = combination(vectors, base)
    spread = sum(weight * float(v.double().std(correction=0)) for weight, v in zip(base.tolist(), vectors, strict=True))
    own = float(mean.std(correction=0))
    return mean if own == 0 else mean.mean() + (mean - mean.mean()) * (spread / own)
