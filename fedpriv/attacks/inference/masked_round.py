"""A simulated round of two clients under secure aggregation, as the server sees it, with Flower's masks or others."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpriv.attacks.inference.masked_sums import Array, MaskedPair, Words, twister_mask

Generator = Callable[[bytes, int], Words]
"""Shared key (32 bytes) and number of values -> mask."""

CLIP, LEVELS = 8.0, 1 << 22
"""Flower's defaults: values are clipped to +-8 and rounded to 22 bits."""
_WEIGHTS = 0.3, 0.7  # the clients' numbers of samples, as shares of the largest


@dataclass(frozen=True)
class MaskedRound:
    """What the server has of a round, and what the clients hid.

    Attributes:
        key: ``(32,)`` bytes that the two clients share.
        uploads: ``(p,)`` of each client.
    """

    pair: MaskedPair
    key: bytes
    uploads: tuple[Array, Array]

    def error(self, recovered: tuple[Array, Array]) -> float:
        """The largest error of recovered uploads, as a share of the largest value."""
        largest = max(np.abs(upload).max() for upload in self.uploads)
        return float(max(np.abs(upload - true).max() for upload, true in zip(recovered, self.uploads, strict=True)) / largest)


def masked_round(generator: Generator, values: int = 10_000, seed: int = 0) -> MaskedRound:
    """A round of two clients with ``values`` normal values each, of standard deviation 0.1 (a net's weights), as Flower encodes
    them."""
    noise = np.random.default_rng(seed)
    key = noise.bytes(32)
    first, second = noise.normal(0, 0.1, (2, values))
    mask = generator(key, 1 + values)
    added, subtracted = (_encoded(upload, weight, noise) for upload, weight in zip((first, second), _WEIGHTS, strict=True))
    return MaskedRound(MaskedPair(added + mask, subtracted - mask, LEVELS, CLIP), key, (first, second))


def flower_seed(key: bytes) -> int:
    """The seed of Flower's Mersenne Twister: the XOR of the words of the key's base64 text."""
    words = np.frombuffer(base64.urlsafe_b64encode(key), dtype="<u4")
    return int(np.bitwise_xor.reduce(words))


def flower_mask(key: bytes, size: int) -> Words:
    """The mask that two clients of Flower 1.41 draw from their shared key."""
    return twister_mask(flower_seed(key), size)


def number_of(seed: int) -> int:
    """The number of a seed in the search; the inverse of :func:`fedpriv.attacks.inference.masked_sums.seed_of`."""
    return sum((seed >> 8 * lane & 0x7F) << 7 * lane for lane in range(4))


def _encoded(values: Array, weight: float, draw: np.random.Generator) -> Words:
    """Weight and weighted values as integers, rounded up or down at random."""
    share = round(weight * LEVELS)
    scaled = (np.clip(values * share / LEVELS, -CLIP, CLIP) + CLIP) * (LEVELS / (2 * CLIP))
    return np.concatenate([[share], np.floor(scaled + draw.random(len(scaled)))]).astype(np.uint32)
