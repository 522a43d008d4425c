"""Masks: uniform integers modulo 2**64 from a key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Words = npt.NDArray[np.uint64]

KEY_BYTES = 32


def mask(key: bytes, size: int) -> Words:
    """``(size,)`` words of the key stream of AES-256 in counter mode.

    All 256 bits of the key matter. A key must be used for one mask alone.

    Raises:
        ValueError: the key has another length.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a mask needs a key of {KEY_BYTES} bytes, got {len(key)}")
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)) + stream.finalize(), dtype="<u8").astype(np.uint64)
