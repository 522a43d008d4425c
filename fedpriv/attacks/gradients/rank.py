"""The number of samples or tokens behind a weight gradient, as its numerical rank.

The weight gradient of a linear layer is ``sum_t dL/da_t x_t^T``, one outer product per sample or token. So its rank is their
number, as long as that is below both of the layer's widths and the vectors are independent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDING = 32.0
"""Singular values below this multiple of the machine precision, relative to the largest, may be rounding errors."""
MAX_SHARE = 0.75
"""Largest rank as a share of the number of singular values; the last ones of a noisy matrix may be small by chance."""
NOISE_FACTOR = 2.0
"""Singular values below this multiple of the expected norm of the error matrix may be noise."""


def rank(matrix: Tensor, noise: float = 0.0, clear: float = 1.0) -> int | None:
    """The numerical rank of a matrix ``(m, n)``: the position of the largest drop between consecutive singular values.

    Only drops to below the level of rounding and noise count. Returns ``None`` if there is none (full rank, noise) or if the
    matrix is zero.

    Args:
        noise: level below which singular values may be noise, beyond rounding (:func:`noise_level`).
        clear: smallest ratio between the two singular values at the drop. Singular values of pure noise fall slowly.
    """
    precision = torch.finfo(matrix.dtype).eps
    values = torch.linalg.svdvals(matrix.double())
    if values[0] == 0:
        return None
    share = (values / values[0]).clamp_min(precision / 8)
    level = max(ROUNDING * precision, noise / float(values[0]))
    drops = torch.where(share[1:] < level, share[:-1] / share[1:], 0)[: int(MAX_SHARE * len(values))]
    return int(drops.argmax()) + 1 if len(drops) and float(drops.max()) > clear else None


def noise_level(error: float, shape: tuple[int, ...]) -> float:
    """The largest singular value to expect from a matrix ``(m, n)`` of independent errors with standard deviation ``error``."""
    return NOISE_FACTOR * error * (math.sqrt(shape[0]) + math.sqrt(shape[1]))
