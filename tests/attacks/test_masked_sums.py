"""Uploads behind masks of a short seed are recovered; behind masks of the whole key they are not."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.attacks.inference.masked_sums import (
    CLIP,
    LEVELS,
    SEED_BITS,
    MaskedPair,
    SecaggMasks,
    Words,
    first_values,
    flower_mask,
    flower_seed,
    masked_round,
    number_of,
    seed_of,
    twister_mask,
    unmask,
)
from fedpriv.secure.masks import mask

ALL_BUT_16_BITS = SecaggMasks(bits=16)


def our_mask(key: bytes, size: int) -> Words:
    """32 bits of each of our words."""
    return mask(key, size).astype(np.uint32)


def test_the_first_value_of_a_twister_without_its_state() -> None:
    seeds = np.random.default_rng(0).integers(0, 2**32, 50, dtype=np.uint32)
    assert first_values(seeds).tolist() == [int(twister_mask(int(seed), 1)[0]) for seed in seeds]


def test_seeds_by_number() -> None:
    keys = [np.random.default_rng(number).bytes(32) for number in range(50)]
    seeds = [flower_seed(key) for key in keys]
    numbers = np.array([number_of(seed) for seed in seeds])
    assert numbers.max() < 2**SEED_BITS and numbers.max() > 2 ** (SEED_BITS - 1)
    assert seed_of(numbers.astype(np.uint32)).tolist() == seeds, "a base64 character has seven bits"


@pytest.mark.parametrize("seed", [0, 1])
def test_uploads_are_recovered_from_flowers_masks_only(seed: int) -> None:
    theirs, ours = masked_round(flower_mask, seed=seed), masked_round(our_mask, seed=seed)
    true = flower_seed(theirs.key)
    result, nothing = unmask([theirs.pair, ours.pair], ALL_BUT_16_BITS.numbers(number_of(true)))
    assert result is not None and result.seed == true
    assert theirs.error(result.uploads) < 5e-5, "a step of 22 bits over the smaller weight"
    assert nothing is None


def test_a_search_that_misses_the_seed_finds_nothing() -> None:
    output = masked_round(flower_mask, seed=2)
    true = number_of(flower_seed(output.key))
    assert unmask([output.pair], range(true + 1, true + 1 + 2**16)) == [None]
    assert unmask([output.pair], range(true, true + 1)) != [None]


@pytest.mark.extra("deploy")
def test_what_flowers_own_clients_send_is_recovered() -> None:
    """The whole protocol by the library's code, at its clients; the server does what it may and then guesses."""
    from tests.attacks.flower_round import played

    uploads = [np.random.default_rng(client).normal(0, 0.1, 500) for client in range(2)]
    messages, seeds, shared = played(uploads)

    def without_private_mask(client: int) -> Words:
        return messages[client] - np.asarray(twister_mask(seeds[client], len(messages[client])))

    pair = MaskedPair(without_private_mask(1), without_private_mask(0), LEVELS, CLIP)
    (result,) = unmask([pair], ALL_BUT_16_BITS.numbers(number_of(shared)))
    assert result is not None
    for recovered, true in zip(result.uploads, reversed(uploads), strict=True):
        assert np.abs(recovered - true).max() < 1e-4
