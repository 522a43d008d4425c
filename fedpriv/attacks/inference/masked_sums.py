"""Recovers the uploads behind the masks of a secure aggregation, by trying all seeds of a short seed.

Two clients of SecAgg (Bonawitz et al., CCS 2017) share a key, and one adds the mask that the other subtracts. In Flower 1.41 the
mask comes from a Mersenne Twister. Its seed is the XOR of the 32-bit words of the base64 text of the key; base64 has seven bits a
character, so there are 2**28 seeds (upstream issue 7522). A server that has removed the private masks, as the protocol lets it,
tries them all. A wrong seed leaves values anywhere in 2**32, the right one an upload's values, which are far smaller.
:func:`masked_round` simulates such a round, with Flower's masks or others.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpriv.attacks.core.options import ranged

Words = npt.NDArray[np.uint32]
Array = npt.NDArray[np.float64]

Generator = Callable[[bytes, int], Words]
"""Shared key (32 bytes) and number of values -> mask."""

CLIP, LEVELS = 8.0, 1 << 22
"""Flower's defaults: values are clipped to +-8 and rounded to 22 bits."""
_WEIGHTS = 0.3, 0.7  # the clients' numbers of samples, as shares of the largest

SEED_BITS = 28
_LANE = 7  # bits of a base64 character
_AT_ONCE = 1 << 16  # seeds; their states fit into a core's cache
_CHECKED = 16  # number of values checked first: under a wrong seed all of them fit with probability 2**-160


@dataclass(frozen=True)
class MaskedPair:
    """The masked uploads of a round of two clients, after the server has removed the private masks.

    Uploads are integers modulo 2**32: first the weight, then the weighted values, both from 0 to ``levels``.

    Attributes:
        added, subtracted: the upload of the client that added the pairwise mask, and of the client that subtracted it
            ``(1 + p,)``.
        levels: the largest integer of an upload, which stands for the value ``clip``; 0 stands for ``-clip``.
    """

    added: Words
    subtracted: Words
    levels: int
    clip: float


@dataclass(frozen=True)
class Unmasked:
    """The seed, and the uploads ``(p,)`` of the clients that added and subtracted the mask."""

    seed: int
    uploads: tuple[Array, Array]


@dataclass(frozen=True)
class SecaggMasks:
    """Recovers a client's upload in a secure aggregation of two, by trying the seeds of Flower's mask generator.

    Attributes:
        bits: number of unknown bits of the seed; fewer than 28 is an oracle, for tests.
    """

    bits: int = ranged(SEED_BITS, least=8, most=SEED_BITS)

    def numbers(self, true: int) -> range:
        """The numbers of the seeds to try, given the number of the true seed, of which all but ``bits`` bits are known."""
        start = true >> self.bits << self.bits
        return range(start, start + (1 << self.bits))


def unmask(
    rounds: Sequence[MaskedPair], numbers: range = range(1 << SEED_BITS), tell: Callable[[int], None] = lambda done: None
) -> list[Unmasked | None]:
    """Try the seeds of these numbers (:func:`seed_of`) on several rounds in one pass; ``None`` for a round that no seed fits.

    All 2**28 seeds take about two minutes on one core.

    Args:
        tell: called now and then with the number of seeds tried so far.
    """
    unmasked: list[Unmasked | None] = [None] * len(rounds)
    for start in range(numbers.start, numbers.stop, _AT_ONCE):
        seeds = seed_of(np.arange(start, min(start + _AT_ONCE, numbers.stop), dtype=np.uint32))
        first = first_values(seeds)
        for index, pair in enumerate(rounds):
            if unmasked[index] is None:
                near = seeds[pair.added[0] - first <= pair.levels]
                fitting = (_with(int(seed), pair) for seed in near)
                unmasked[index] = next((uploads for uploads in fitting if uploads is not None), None)
        tell(start + len(seeds) - numbers.start)
        if None not in unmasked:
            break
    return unmasked


def seed_of(number: Words) -> Words:
    """The seeds with these numbers: each byte of a seed has seven of the number's 28 bits."""
    seeds = np.zeros_like(number)
    for lane in range(4):
        seeds |= (number >> np.uint32(_LANE * lane) & np.uint32(2**_LANE - 1)) << np.uint32(8 * lane)
    return seeds


def first_values(seeds: Words) -> Words:
    """The first output of a Mersenne Twister (Matsumoto & Nishimura 1998) for each seed.

    It depends on words 0, 1 and 397 of the state, which are computed in order.
    """
    state, shifted = seeds.copy(), np.empty_like(seeds)
    word_1 = state
    for index in range(1, 398):
        np.right_shift(state, 30, out=shifted)
        np.bitwise_xor(state, shifted, out=state)
        np.multiply(state, np.uint32(1812433253), out=state)
        np.add(state, np.uint32(index), out=state)
        if index == 1:
            word_1 = state.copy()
    joined = (seeds & np.uint32(0x80000000)) | (word_1 & np.uint32(0x7FFFFFFF))
    y = state ^ (joined >> 1) ^ (joined & 1) * np.uint32(0x9908B0DF)
    y ^= y >> 11
    y ^= (y << 7) & np.uint32(0x9D2C5680)
    y ^= (y << 15) & np.uint32(0xEFC60000)
    return (y ^ (y >> 18)).astype(np.uint32)


def twister_mask(seed: int, size: int) -> Words:
    """The first ``size`` values of the mask for a seed, as Flower 1.41 draws them."""
    return np.random.RandomState(seed).randint(0, 2**32 - 1, size, dtype=np.int64).astype(np.uint32)


def _with(seed: int, pair: MaskedPair) -> Unmasked | None:
    """The uploads, if this seed leaves values in the range of an upload."""
    for size in (_CHECKED, len(pair.added)):
        mask = twister_mask(seed, min(size, len(pair.added)))
        both = pair.added[:size] - mask, pair.subtracted[:size] + mask
        if max(upload.max() for upload in both) > pair.levels:
            return None
    return Unmasked(seed, (_values(both[0], pair), _values(both[1], pair)))


def _values(integers: Words, pair: MaskedPair) -> Array:
    """The values ``(p,)`` of an upload, without the weight."""
    weighted = integers[1:] * (2 * pair.clip / pair.levels) - pair.clip
    return np.asarray(weighted * (pair.levels / max(int(integers[0]), 1)), dtype=np.float64)


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
    """The number of a seed in the search; the inverse of :func:`seed_of`."""
    return sum((seed >> 8 * lane & 0x7F) << 7 * lane for lane in range(4))


def _encoded(values: Array, weight: float, draw: np.random.Generator) -> Words:
    """Weight and weighted values as integers, rounded up or down at random."""
    share = round(weight * LEVELS)
    scaled = (np.clip(values * share / LEVELS, -CLIP, CLIP) + CLIP) * (LEVELS / (2 * CLIP))
    return np.concatenate([[share], np.floor(scaled + draw.random(len(scaled)))]).astype(np.uint32)
