"""The number of samples or tokens behind a weight gradient, which is the sum of one outer product for each."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDING = 32.0
"""Singular values below so many times the machine precision, relative to the greatest, may be due to rounding."""
MOST = 0.75
"""At most this share of the singular values may count, since the least one of a noisy matrix may be small by chance."""
NOISY = 2.0
"""Singular values below so many times the norm of a random matrix of errors may be due to them."""


def rank(matrix: Tensor, noise: float = 0.0, clear: float = 1.0) -> int | None:
    """The numerical rank of ``(m, n)``: at the largest drop of the singular values to the level of rounding and errors.

    ``None`` where there is no such drop, as the rank is full or there is noise, and for a matrix of zeros.

    Args:
        noise: singular values below it may be due to errors beyond the rounding of the matrix itself (:func:`noise_level`).
        clear: factor of a drop from which it counts. Those of errors alone fall slowly, and the least one that is below the level
            would pass for the end of the signal, up to the largest rank that there may be.
    """
    precision = torch.finfo(matrix.dtype).eps
    values = torch.linalg.svdvals(matrix.double())
    if values[0] == 0:
        return None
    share = (values / values[0]).clamp_min(precision / 8)
    level = max(ROUNDING * precision, noise / float(values[0]))
    falls = torch.where(share[1:] < level, share[:-1] / share[1:], 0)[: int(MOST * len(values))]
    return int(falls.argmax()) + 1 if len(falls) and float(falls.max()) > clear else None


def noise_level(error: float, shape: tuple[int, ...]) -> float:
    """The largest singular value that independent errors of that standard deviation may make in a matrix ``(m, n)``."""
    return NOISY * error * (math.sqrt(shape[0]) + math.sqrt(shape[1]))
