"""Masks: uniform integers modulo 2**64 from a key."""

from __future__ import annotations

from fedpriv.noise_source import Words, key_stream


def mask(key: bytes, size: int) -> Words:
    """``(size,)`` words of the key stream of AES-256 in counter mode.

    A key must be used for one mask only.

    Raises:
        ValueError: the key has another length.
    """
    return key_stream(key, size)
