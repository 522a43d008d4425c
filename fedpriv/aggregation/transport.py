"""Wasserstein barycentres without a closed form, computed by POT (Flamary et al. 2021), for FedDUAL's aggregation."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import UsageError

LARGEST = 4096
"""Largest number of entries of a tensor: the matrix of transport costs has its square."""
NEVER = 1e250
"""Larger than any scaling factor of the iteration."""


def sinkhorn_barycenter(vectors: Tensor, base: Tensor, reg: float, iterations: int) -> Tensor:
    """The entropic W_2 barycentre of ``(K, d)``, whose entries are masses at their positions: ``(d,)`` in float64.

    This follows the text of FedDUAL: iterative Bregman projections of Sinkhorn-Knopp type (Benamou et al. 2015). Since masses are
    not negative, positive and negative parts are transported separately. The cost between two positions is their squared
    distance, scaled to 1 from the first to the last; for the weights of a net it has no meaning.

    Args:
        base: weights ``(K,)`` in float64, summing to one.
        reg: weight of the entropy, in units of the largest cost. The larger, the more the masses are spread; below 0.002 the
            exponentials of the costs would underflow.
        iterations: the largest number of iterations.

    Raises:
        UsageError: there are more than :data:`LARGEST` entries.
    """
    if (d := vectors.shape[1]) > LARGEST:
        raise UsageError(
            f"a tensor of {d:,} entries needs {8e-9 * d**2:,.0f} GB for the costs between its positions; see dyn_layers"
        )
    positive, negative = (_barycenter(part, base, reg, iterations) for part in (vectors.clamp(min=0), (-vectors).clamp(min=0)))
    return positive - negative


def _barycenter(masses: Tensor, base: Tensor, reg: float, iterations: int) -> Tensor:
    """The barycentre of non-negative ``(K, d)``, with their mean total mass; rows without mass do not affect its shape."""
    import ot

    total, d = masses.double().sum(1), masses.shape[1]
    has_mass = total > 0
    if d == 1 or not has_mass.any():
        return base @ masses.double()
    positions = np.linspace(0, 1, d)[:, None]
    shares = (masses[has_mass].double() / total[has_mass, None]).T.numpy()
    weights = (base[has_mass] / base[has_mass].sum()).numpy()
    # POT's default method starts as if all weights were equal, and converges to a wrong result if they are not. The stabilised
    # one is correct unless it absorbs large factors, by which it would lose the weights; `tau` prevents that.
    with warnings.catch_warnings():  # POT warns if the limit of iterations is reached
        warnings.simplefilter("ignore")
        center = ot.bregman.barycenter(
            shares, ot.dist(positions), reg, weights, "sinkhorn_stabilized", iterations, stopThr=1e-9, tau=NEVER
        )
    return torch.from_numpy(center / center.sum()) * (base @ total)


def neuron_barycenter(vectors: Tensor, base: Tensor, neurons: int, iterations: int) -> Tensor:
    """The free-support W_2 barycentre of tensors ``(K, neurons * inputs)``: ``(neurons * inputs,)`` in float64.

    Each client's neurons are points of equal mass. The algorithm alternates optimal matchings and means (Cuturi & Doucet 2014,
    algorithm 2), starting from the weighted mean. If every neuron is matched with itself, as is usual for clients that start from
    the same net, the result is the weighted mean.

    Args:
        base: weights ``(K,)`` in float64, summing to one.
        neurons: number of rows of the tensor.
        iterations: the largest number of iterations.
    """
    import ot

    clouds = [vector.double().view(neurons, -1).numpy() for vector in vectors]
    equal = np.full(neurons, 1 / neurons)
    start = np.tensordot(base.numpy(), np.stack(clouds), 1)
    points = ot.lp.free_support_barycenter(
        clouds, [equal] * len(clouds), start, b=equal, weights=base.numpy(), numItermax=iterations
    )
    return torch.from_numpy(points).flatten()
