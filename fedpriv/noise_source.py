"""Sources of random numbers: the run's seed, which is public, or a client's secret key.

torch's CPU generator is a Mersenne Twister with a seed of 32 bits: a server that sees noise could try all seeds and remove it. So
the noise that protects a client comes from the key stream of AES-256 in counter mode instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from fedpriv import seeding
from fedpriv.wire import RandomStream

Words = npt.NDArray[np.uint64]

KEY_BYTES = 32
_BITS = {torch.float32: 24, torch.float64: 53}
"""Random bits of a uniform number: as many as the significand of its type holds."""
_TWISTER = 24, 624
"""Position and number of the Mersenne Twister's words in torch's generator state: from this byte on, 32 bits in 64 each."""


def key_stream(key: bytes, size: int) -> Words:
    """The first words ``(size,)`` of the key stream of AES-256 in counter mode; use each key only once.

    Raises:
        ValueError: the key is not 32 bytes long.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key stream needs a key of {KEY_BYTES} bytes, got {len(key)}")
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)) + stream.finalize(), dtype="<u8").astype(np.uint64)


class SeededNoise:
    """Noise from a torch generator; a party that knows its seed can compute it."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(tuple(shape), generator=self._generator, dtype=dtype)

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=self._generator)

    def exponential(self, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape)).exponential_(generator=self._generator)


class SecretNoise:
    """Noise from a key of 32 bytes; without the key it is indistinguishable from true randomness."""

    def __init__(self, key: bytes) -> None:
        self._key, self._taken = key, 0

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        bits = _BITS[dtype]
        words = self._words(math.prod(shape)) >> np.uint64(64 - bits)
        return torch.from_numpy(words.astype(np.int64)).to(dtype).mul_(2.0**-bits).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        # The Box-Muller transform, in float64.
        size = math.prod(shape)
        radius, angle = self.uniform((2, (size + 1) // 2), torch.float64)
        radius = (-2 * torch.log1p(-radius)).sqrt_()
        angle *= 2 * math.pi
        return torch.stack([radius * angle.cos(), radius * angle.sin()]).flatten()[:size].float().reshape(tuple(shape))

    def exponential(self, shape: Sequence[int]) -> Tensor:
        return -torch.log1p(-self.uniform(shape, torch.float64)).float()

    def _words(self, size: int) -> Words:
        self._taken += 1
        return key_stream(seeding.derive_secretly(self._key, self._taken), size)


class RandomSource(Protocol):
    """Random numbers by purpose: those of different labels are independent."""

    def noise(self, *labels: int | str) -> RandomStream:
        """The noise of a purpose, such as that of DP-SGD in one round."""

    def generator(self, *labels: int | str) -> torch.Generator:
        """A torch generator, for randomness whose results stay with the client, such as augmentation."""

    def global_rng(self, *labels: int | str) -> AbstractContextManager[None]:
        """A block in which torch's global generators are seeded, such as for dropout; they are restored afterwards."""


class SeededSource:
    """Random numbers from the run's seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def noise(self, *labels: int | str) -> RandomStream:
        return SeededNoise(self.generator(*labels))

    def generator(self, *labels: int | str) -> torch.Generator:
        return seeding.generator(self._seed, *labels)

    def global_rng(self, *labels: int | str) -> AbstractContextManager[None]:
        return seeding.global_rng(self._seed, *labels)


class SecretSource:
    """Random numbers from a key of 32 bytes that only the client knows."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def noise(self, *labels: int | str) -> RandomStream:
        return SecretNoise(seeding.derive_secretly(self._key, *labels))

    def generator(self, *labels: int | str) -> torch.Generator:
        return _hide(torch.Generator(), seeding.derive_secretly(self._key, *labels))

    @contextmanager
    def global_rng(self, *labels: int | str) -> Iterator[None]:
        key = seeding.derive_secretly(self._key, *labels)
        # A GPU's generator uses all 64 bits of its seed.
        with seeding.global_rng(int.from_bytes(key[:8], "big"), "secret"):
            _hide(torch.default_generator, key)
            yield


def _hide(generator: torch.Generator, key: bytes) -> torch.Generator:
    """Fill the whole state of a Mersenne Twister from the key, since a seed has only 32 bits."""
    begin, count = _TWISTER
    state = generator.manual_seed(0).get_state()
    words = (key_stream(key, count) >> np.uint64(32)).astype(np.int64)
    state[begin : begin + 8 * count].view(torch.int64).copy_(torch.from_numpy(words))
    return generator.set_state(state)
