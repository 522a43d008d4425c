"""What random numbers are drawn from: the run's seed, which is public, or a secret key.

torch's generator of a processor is a Mersenne Twister whose seed has 32 bits: a server that sees noise can try all seeds, and
remove the noise. So what must stay hidden is drawn from the key stream of AES-256 in counter mode, and not by torch.
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
"""Digits of a uniform number, all of which its type can hold."""
_TWISTER = 24, 624
"""Where torch's state of a Mersenne Twister has its words, in bytes from the beginning, and how many: of 32 bits, in 64 each."""


def key_stream(key: bytes, size: int) -> Words:
    """``(size,)`` words of the key stream of AES-256 in counter mode.

    All 256 bits of the key matter. A key must be used once.

    Raises:
        ValueError: the key has another length.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key stream needs a key of {KEY_BYTES} bytes, got {len(key)}")
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)) + stream.finalize(), dtype="<u8").astype(np.uint64)


class SeededDraws:
    """Those of a torch generator: its seed determines them."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(tuple(shape), generator=self._generator, dtype=dtype)

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=self._generator)

    def exponential(self, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape)).exponential_(generator=self._generator)


class SecretDraws:
    """Those of a key of 32 bytes: without it they cannot be told from truly random numbers."""

    def __init__(self, key: bytes) -> None:
        self._key, self._taken = key, 0

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        bits = _BITS[dtype]
        words = self._words(math.prod(shape)) >> np.uint64(64 - bits)
        return torch.from_numpy(words.astype(np.int64)).to(dtype).mul_(2.0**-bits).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        # By Box and Muller, in float64.
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


class Source(Protocol):
    """Where the draws of each purpose come from; those of other labels are independent."""

    def draws(self, *labels: int | str) -> RandomStream: ...

    def generator(self, *labels: int | str) -> torch.Generator:
        """For what takes a generator of torch and is not seen by others, as augmentation."""

    def global_rng(self, *labels: int | str) -> AbstractContextManager[None]:
        """A block in which torch's global generators are seeded, as for dropout; they are restored after it."""


class Seed:
    """The run's seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draws(self, *labels: int | str) -> RandomStream:
        return SeededDraws(self.generator(*labels))

    def generator(self, *labels: int | str) -> torch.Generator:
        return seeding.generator(self._seed, *labels)

    def global_rng(self, *labels: int | str) -> AbstractContextManager[None]:
        return seeding.global_rng(self._seed, *labels)


class Secret:
    """A key of 32 bytes that only the client knows."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def draws(self, *labels: int | str) -> RandomStream:
        return SecretDraws(seeding.derive_secretly(self._key, *labels))

    def generator(self, *labels: int | str) -> torch.Generator:
        return _hide(torch.Generator(), seeding.derive_secretly(self._key, *labels))

    @contextmanager
    def global_rng(self, *labels: int | str) -> Iterator[None]:
        key = seeding.derive_secretly(self._key, *labels)
        # An accelerator's generator takes all 64 bits of a seed.
        with seeding.global_rng(int.from_bytes(key[:8], "big"), "secret"):
            _hide(torch.default_generator, key)
            yield


def _hide(generator: torch.Generator, key: bytes) -> torch.Generator:
    """Fill all of a Mersenne Twister's state from the key, as a seed would leave 32 bits to guess."""
    begin, count = _TWISTER
    state = generator.manual_seed(0).get_state()
    words = (key_stream(key, count) >> np.uint64(32)).astype(np.int64)
    state[begin : begin + 8 * count].view(torch.int64).copy_(torch.from_numpy(words))
    return generator.set_state(state)
