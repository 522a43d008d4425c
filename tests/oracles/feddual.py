"""FedDUAL's objective and aggregation, written independently: NumPy, Python loops and SciPy's Wasserstein distance.

Shares nothing with fedpriv. The loss is differentiated by torch in float64, through the softmax itself.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance
from torch import Tensor

Array = NDArray[np.float64]


def mean_shift(vectors: Array, eps: float, iterations: int, additive: bool = False) -> tuple[Array, Array]:
    """Centre and weights after a fixed number of iterations of eqs. 12-13, with uniform base weights."""
    count = len(vectors)
    b, w = vectors.mean(0), np.full(count, 1 / count)
    for _ in range(iterations):
        distances = [wasserstein_distance(b, v) for v in vectors]
        if additive:
            raw = [np.exp(-d / eps) / count for d in distances]
            w = np.array([r / (sum(raw) + 1e-10) for r in raw])
        else:
            least = min(distances)
            raw = [np.exp(-(d - least) / eps) for d in distances]
            w = np.array(raw) / sum(raw)
        b = sum(wk * v for wk, v in zip(w, vectors, strict=True))
    return b, w


def kl(weights: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """KL(softmax(weights) || softmax(reference)) and its gradient at the weights, by autograd in float64."""
    z = weights.double().clone().requires_grad_(True)
    log_p, log_q = torch.log_softmax(z, 0), torch.log_softmax(reference.double(), 0)
    value = (log_p.exp() * (log_p - log_q)).sum()
    (gradient,) = torch.autograd.grad(value, z)
    return value.detach(), gradient
