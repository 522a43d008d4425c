"""Which samples: choices that are fixed for good, since the split of a data set is part of the data set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SEED = 20220601


def in_proportion(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sorted positions ``(count,)`` of a fixed choice of samples with the classes' shares kept, to within one sample each.

    The samples of a smaller choice are not in general among those of a larger one.
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
    """Positions of a fixed training and test split, the fraction held out of each class (rounded), both sorted."""
    rng = np.random.default_rng(_SEED)
    groups = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    test = np.sort(np.concatenate([group[: round(fraction * len(group))] for group in groups]))
    return np.setdiff1d(np.arange(len(labels)), test), test


def at_most(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sorted positions of a fixed choice of so many samples of each class, or of all where there are fewer."""
    rng = np.random.default_rng(_SEED)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:count] for c in range(labels.max() + 1)]))
