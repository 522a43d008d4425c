"""Uploads behind the masks of a secure aggregation, by guessing a short seed.

Two clients of SecAgg (Bonawitz et al., CCS 2017) share a key, and one adds the mask that the other subtracts. In Flower 1.41 the
mask comes from a Mersenne Twister. Its seed is the XOR of the 32-bit words of the base64 text of the key; base64 has seven bits a
character, so there are 2**28 seeds (upstream issue 7522). A server that has removed the private masks, as the protocol
lets it, tries them all. A wrong seed leaves a value anywhere in 2**32, the right one an upload's, of a few thousandths of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpriv.attacks.core.options import ranged

Words = npt.NDArray[np.uint32]
Array = npt.NDArray[np.float64]

SEED_BITS = 28
_LANE = 7  # bits of a base64 character
_AT_ONCE = 1 << 16  # seeds; their states fit into a core's cache
_CHECKED = 16  # values; so many of a wrong seed fit with probability 2**-160


@dataclass(frozen=True)
class MaskedPair:
    """What the server holds of a round of two clients, after it has removed the private masks.

    The uploads are integers modulo 2**32: first the weight, then the weighted values, both from 0 to ``levels``.

    Attributes:
        added, subtracted: ``(1 + p,)`` the upload of the client that added the pairwise mask, and of the one that subtracted it.
        levels: the largest integer of an upload.
        clip: the value for which it stands; 0 stands for ``-clip``.
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
    """A client's upload in a secure aggregation of two, by trying the seeds of Flower's mask generator.

    Attributes:
        bits: of the seed that are not known; fewer than 28 is an oracle, for tests.
    """

    bits: int = ranged(SEED_BITS, least=8, most=SEED_BITS)

    def numbers(self, true: int) -> range:
        """The seeds to try, by number, given the true one's, of which all but ``bits`` are known."""
        start = true >> self.bits << self.bits
        return range(start, start + (1 << self.bits))


def unmask(
    rounds: Sequence[MaskedPair], numbers: range = range(1 << SEED_BITS), tell: Callable[[int], None] = lambda done: None
) -> list[Unmasked | None]:
    """Try the seeds of these numbers (:func:`seed_of`) on several rounds in one pass; ``None`` where no seed fits.

    All 2**28 take about two minutes of one core.

    Args:
        tell: called with the number of seeds that were tried, now and then.
    """
    found: list[Unmasked | None] = [None] * len(rounds)
    for start in range(numbers.start, numbers.stop, _AT_ONCE):
        seeds = seed_of(np.arange(start, min(start + _AT_ONCE, numbers.stop), dtype=np.uint32))
        first = first_values(seeds)
        for index, pair in enumerate(rounds):
            if found[index] is None:
                near = seeds[pair.added[0] - first <= pair.levels]
                fitting = (_with(int(seed), pair) for seed in near)
                found[index] = next((one for one in fitting if one is not None), None)
        tell(start + len(seeds) - numbers.start)
        if None not in found:
            break
    return found


def seed_of(number: Words) -> Words:
    """The seeds, by number: 28 bits, of which each byte gets seven."""
    found = np.zeros_like(number)
    for lane in range(4):
        found |= (number >> np.uint32(_LANE * lane) & np.uint32(2**_LANE - 1)) << np.uint32(8 * lane)
    return found


def first_values(seeds: Words) -> Words:
    """The first output of a Mersenne Twister (Matsumoto & Nishimura 1998) for each seed, without the rest of its state.

    It depends on words 0, 1 and 397 of the state, which is filled in order.
    """
    state, shifted = seeds.copy(), np.empty_like(seeds)
    one = state
    for index in range(1, 398):
        np.right_shift(state, 30, out=shifted)
        np.bitwise_xor(state, shifted, out=state)
        np.multiply(state, np.uint32(1812433253), out=state)
        np.add(state, np.uint32(index), out=state)
        if index == 1:
            one = state.copy()
    joined = (seeds & np.uint32(0x80000000)) | (one & np.uint32(0x7FFFFFFF))
    y = state ^ (joined >> 1) ^ (joined & 1) * np.uint32(0x9908B0DF)
    y ^= y >> 11
    y ^= (y << 7) & np.uint32(0x9D2C5680)
    y ^= (y << 15) & np.uint32(0xEFC60000)
    return (y ^ (y >> 18)).astype(np.uint32)


def twister_mask(seed: int, size: int) -> Words:
    """``(size,)`` values of the mask for a seed, as Flower 1.41 draws them."""
    return np.random.RandomState(seed).randint(0, 2**32 - 1, size, dtype=np.int64).astype(np.uint32)


def _with(seed: int, pair: MaskedPair) -> Unmasked | None:
    """The uploads, if all values that the seed leaves are an upload's."""
    for size in (_CHECKED, len(pair.added)):
        mask = twister_mask(seed, min(size, len(pair.added)))
        both = pair.added[:size] - mask, pair.subtracted[:size] + mask
        if max(one.max() for one in both) > pair.levels:
            return None
    return Unmasked(seed, (_values(both[0], pair), _values(both[1], pair)))


def _values(integers: Words, pair: MaskedPair) -> Array:
    """The values ``(p,)`` of an upload, without the weight."""
    weighted = integers[1:] * (2 * pair.clip / pair.levels) - pair.clip
    return np.asarray(weighted * (pair.levels / max(int(integers[0]), 1)), dtype=np.float64)
