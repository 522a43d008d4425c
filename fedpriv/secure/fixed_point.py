"""Numbers as integers modulo 2**64, so that masks cancel exactly: clipped, with 36 binary places, rounded stochastically."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpriv.noise_source import Words
from fedpriv.secure.masks import mask

Array = npt.NDArray[np.float64]

PLACES = 36
CLIP = 2.0**16
"""1024 clipped numbers add up to less than 2**63, half the modulus."""


def encoded(values: Array, seed: bytes) -> Words:
    """``(p,)`` numbers as words, rounded without bias by random numbers from a seed of 32 bytes.

    Raises:
        ValueError: a number is not finite.
    """
    if not np.isfinite(values).all():
        raise ValueError("numbers that are not finite cannot be added up behind masks")
    uniform = (mask(seed, len(values)) >> np.uint64(11)) * 2.0**-53
    return np.floor(np.clip(values, -CLIP, CLIP) * 2.0**PLACES + uniform).astype(np.int64).view(np.uint64)


def decoded(total: Words) -> Array:
    """The numbers ``(p,)`` of a sum of at most 1024 encoded ones."""
    return np.asarray(total.view(np.int64) / 2.0**PLACES, dtype=np.float64)
