"""Shamir's secret sharing (Communications of the ACM 22(11), 1979) of 32 bytes, over the integers modulo 2**521 - 1."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

_PRIME = 2**521 - 1
_SECRET, SHARE = 32, 66
"""Bytes of a secret and of a share."""


def split(secret: bytes, owners: Iterable[int], threshold: int) -> dict[int, bytes]:
    """A share for each owner (a number from 0): any ``threshold`` of them give the secret, fewer say nothing about it."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]

    def polynomial(x: int) -> int:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % _PRIME
        return value

    return {owner: polynomial(owner + 1).to_bytes(SHARE) for owner in owners}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from at least ``threshold`` shares, by owner.

    Raises:
        ValueError: they are not shares of one secret, or too few (which is noticed but in one case of 2**265).
    """
    total = 0
    for owner, share in shares.items():
        numerator = denominator = 1
        for other in shares:
            if other != owner:
                numerator = numerator * (other + 1) % _PRIME
                denominator = denominator * (other - owner) % _PRIME
        total += int.from_bytes(share) * numerator * pow(denominator, -1, _PRIME)
    total %= _PRIME
    if total >> 8 * _SECRET:
        raise ValueError("these shares are not of one secret")
    return total.to_bytes(_SECRET)
