"""Barycentres by optimal transport, computed by POT (Flamary et al. 2021), where no closed form is known."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import UsageError

LARGEST = 4096
"""Entries of a tensor between whose positions mass is moved: the costs of moving it are a matrix of this size squared."""
NEVER = 1e250
"""Above all factors of the iteration."""


def sinkhorn_barycenter(vectors: Tensor, base: Tensor, reg: float, iterations: int) -> Tensor:
    """The entropic W_2 barycentre of ``(K, d)``, whose entries are masses at their positions; ``(d,)`` in float64.

    This is what the text of FedDUAL says: iterative Bregman projections (Benamou et al. 2015), as Sinkhorn and Knopp's. Vectors
    have negative entries, and masses have none, so positive and negative parts are transported apart. The cost between two
    positions is their squared distance, 1 from the first to the last; for weights it has no meaning.

    Args:
        base: ``(K,)`` weights in float64, summing to one.
        reg: weight of the entropy, in units of the largest cost. The more, the more the masses are spread; below 0.002 the
            exponentials of the costs would underflow.
        iterations: the largest number; it may end earlier.

    Raises:
        UsageError: more than :data:`LARGEST` entries.
    """
    if (d := vectors.shape[1]) > LARGEST:
        raise UsageError(
            f"a tensor of {d:,} entries needs {8e-9 * d**2:,.0f} GB for the costs between its positions; see dyn_layers"
        )
    positive, negative = (_moved(part, base, reg, iterations) for part in (vectors.clamp(min=0), (-vectors).clamp(min=0)))
    return positive - negative


def _moved(masses: Tensor, base: Tensor, reg: float, iterations: int) -> Tensor:
    """The barycentre of non-negative ``(K, d)``, with the mean of their masses; those without any have no place, and no say."""
    import ot

    total, d = masses.double().sum(1), masses.shape[1]
    there = total > 0
    if d == 1 or not there.any():
        return base @ masses.double()
    places = np.linspace(0, 1, d)[:, None]
    shares = (masses[there].double() / total[there, None]).T.numpy()
    weights = (base[there] / base[there].sum()).numpy()
    # POT's default method begins as if all weights were equal, and where they are not it ends elsewhere. This one is right unless
    # it absorbs large factors, which loses the weights; from the least `reg` on, there is no need to.
    with warnings.catch_warnings():  # that the limit was reached, which is an option
        warnings.simplefilter("ignore")
        center = ot.bregman.barycenter(
            shares, ot.dist(places), reg, weights, "sinkhorn_stabilized", iterations, stopThr=1e-9, tau=NEVER
        )
    return torch.from_numpy(center / center.sum()) * (base @ total)


def neuron_barycenter(vectors: Tensor, base: Tensor, neurons: int, iterations: int) -> Tensor:
    """The W_2 barycentre of neurons as free points ``(K, neurons * inputs)`` -> ``(neurons * inputs,)`` in float64.

    Each client's tensor is a cloud of as many points of equal mass as it has rows. The alternation of optimal matchings and means
    (Cuturi & Doucet 2014, algorithm 2) starts from the weighted mean. Where it matches every neuron with itself, as for clients
    that start from the same net, it ends there.

    Args:
        base: ``(K,)`` weights in float64, summing to one.
        neurons: rows of the tensor.
        iterations: the largest number.
    """
    import ot

    clouds = [vector.double().view(neurons, -1).numpy() for vector in vectors]
    even = np.full(neurons, 1 / neurons)
    start = np.tensordot(base.numpy(), np.stack(clouds), 1)
    points = ot.lp.free_support_barycenter(
        clouds, [even] * len(clouds), start, b=even, weights=base.numpy(), numItermax=iterations
    )
    return torch.from_numpy(points).flatten()
