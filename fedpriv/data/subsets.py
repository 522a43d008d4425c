"""Fixed choices of samples, independent of a run's seed, since the splits of a data set are part of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SEED = 20220601


def in_proportion(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sorted positions ``(count,)`` of a fixed choice of samples that keeps the classes' shares, to within one sample each.

    A smaller choice is not in general a subset of a larger one.
    """
    rng = np.random.default_rng(_SEED)
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * count / len(labels)
    quotas = np.floor(exact).astype(int)
    # Largest remainders, ties to the lower class.
    quotas[np.argsort(quotas - exact, kind="stable")[: count - quotas.sum()]] += 1
    return np.sort(
        np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, quotas, strict=True)])
    )


def hold_out(labels: NDArray[np.int64], fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted positions of a fixed training and test split; ``fraction`` of each class (rounded) is held out."""
    rng = np.random.default_rng(_SEED)
    groups = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    test = np.sort(np.concatenate([group[: round(fraction * len(group))] for group in groups]))
    return np.setdiff1d(np.arange(len(labels)), test), test


def at_most(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sorted positions of a fixed choice of at most ``count`` samples of each class."""
    rng = np.random.default_rng(_SEED)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:count] for c in range(labels.max() + 1)]))
