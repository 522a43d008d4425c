"""Draws that come from a secret key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv import seeding
from fedpriv.noise_source import SecretNoise, SecretSource, SeededNoise, SeededSource, key_stream

KEY = bytes(range(32))


def test_the_key_stream_is_that_of_aes_256() -> None:
    """NIST SP 800-38A has no vector with a counter of zero; FIPS 197, appendix C.3, encrypts one block."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES256(KEY), modes.ECB()).encryptor()
    assert block.update(bytes.fromhex("00112233445566778899aabbccddeeff")).hex() == "8ea2b7ca516745bfeafc49904b496089"
    counters = b"".join(number.to_bytes(16, "big") for number in range(3))
    assert key_stream(KEY, 6).astype("<u8").tobytes() == block.update(counters)
    with pytest.raises(ValueError, match="32 bytes, got 31"):
        key_stream(KEY[1:], 1)


@pytest.mark.parametrize(
    ("kind", "law"), [("uniform", stats.uniform()), ("normal", stats.norm()), ("exponential", stats.expon())]
)
def test_the_laws(kind: str, law: object) -> None:
    drawn = getattr(SecretNoise(KEY), kind)((300, 201))
    assert drawn.shape == (300, 201) and drawn.dtype == torch.float32 and drawn.isfinite().all()
    assert stats.kstest(drawn.flatten().double().numpy(), law.cdf).pvalue > 0.01  # type: ignore[attr-defined]
    halves = torch.stack(drawn.flatten().chunk(2))  # Box and Muller draw pairs, one of each half
    assert abs(float(torch.corrcoef(halves)[0, 1])) < 0.02 and abs(float(torch.corrcoef(halves.square())[0, 1])) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_below_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.noise_source.key_stream", lambda key, size: np.full(size, 2**64 - 1, np.uint64))
    draws = SecretNoise(KEY)
    assert draws.uniform((3,), dtype).max() < 1
    assert draws.normal((3,)).isfinite().all() and draws.exponential((3,)).isfinite().all()
    monkeypatch.setattr("fedpriv.noise_source.key_stream", lambda key, size: np.zeros(size, np.uint64))
    assert draws.uniform((3,), dtype).min() == 0 and draws.normal((3,)).isfinite().all()


def test_draws_differ_with_key_labels_and_place() -> None:
    drawn = [
        SecretNoise(KEY).normal((4,)),
        SecretSource(KEY).noise("a").normal((4,)),
        SecretSource(KEY).noise("b").normal((4,)),
        SecretSource(KEY).noise("a", 1).normal((4,)),
        SecretSource(KEY[::-1]).noise("a").normal((4,)),
    ]
    again = SecretSource(KEY).noise("a")
    drawn += [again.normal((4,)), again.normal((4,))]
    assert torch.equal(drawn[1], drawn[5]) and len({tuple(row.tolist()) for row in drawn}) == len(drawn) - 1


def test_a_hidden_generator_is_not_in_the_state_of_its_seed() -> None:
    """A torch generator takes 32 bits of its seed; those of a secret are not of such a seed."""
    low = torch.Generator().manual_seed(7)
    assert torch.equal(torch.rand(4, generator=low), torch.rand(4, generator=torch.Generator().manual_seed(7 + (9 << 32))))
    hidden = SecretSource(KEY).generator("augment")
    whole = hidden.get_state()
    assert not torch.equal(whole, torch.Generator().manual_seed(hidden.initial_seed()).get_state())


def test_a_generator_s_whole_state_comes_from_the_key() -> None:
    """Beside NumPy's Mersenne Twister with the same 624 words."""
    words = SecretSource(KEY).generator("augment").get_state()[24 : 24 + 8 * 624].view(torch.int64).numpy()
    twister = np.random.RandomState()
    twister.set_state(("MT19937", words.astype(np.uint32), 624, 0, 0.0))
    expected = twister.randint(0, 2**32, 1000, dtype=np.uint64) & np.uint64(2**24 - 1)
    drawn = torch.rand(1000, generator=SecretSource(KEY).generator("augment"))
    assert torch.equal(drawn, torch.from_numpy(expected.astype(np.float32)) / 2**24)
    assert abs(words.mean() / 2**31 - 1) < 0.1 and math.log2(words.max()) > 31


def test_the_global_generator_is_restored() -> None:
    before = torch.get_rng_state()
    with SecretSource(KEY).global_rng("dropout"):
        expected = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with SecretSource(KEY).global_rng("dropout"):
        assert torch.equal(torch.rand(3), expected)
    with SecretSource(KEY).global_rng("other"):
        assert not torch.equal(torch.rand(3), expected)


def test_a_seed_draws_what_torch_does() -> None:
    source = SeededSource(5)
    assert torch.equal(source.noise("a", 1).normal((2, 3)), torch.randn(2, 3, generator=seeding.generator(5, "a", 1)))
    draws, generator = SeededNoise(seeding.generator(5, "b")), seeding.generator(5, "b")
    assert torch.equal(draws.uniform((4,), torch.float64), torch.rand(4, generator=generator, dtype=torch.float64))
    assert torch.equal(draws.exponential((4,)), torch.empty(4).exponential_(generator=generator))
