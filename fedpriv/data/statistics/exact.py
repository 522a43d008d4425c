"""Exact sums of numbers and of their squares, as whole numbers that are added word by word.

A number is a multiple of 2**-160 below 2**128: all of float32's numbers, with float64's places. Its sum and the sum of its
squares are whole numbers, so the clients' sums are the same in any order, also behind the masks of a secure sum; a deviation is
exact even where it is much smaller than the mean; and equal numbers have the deviation 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

PLACES = 160
"""Binary places of a number; its square has twice as many."""
LARGEST = 2.0**128
"""Numbers from here on cannot be summed, and their scaled values would not be float32 numbers."""
WORD = 32
"""Bits of a word. Words are sent as 64-bit integers, so that those of over a million clients can be added."""
SUM_WORDS, SQUARE_WORDS = 10, 19
"""Words of the two sums of up to 2**31 numbers; the last one has the sign."""
_CHUNK = 2**24
"""Numbers at a time: so many products of 36 bits add up to less than 2**63."""
_PART = 18
_MASK = 2**_PART - 1


@dataclass(frozen=True)
class Moments:
    """How many numbers there are, their sum in units of ``2**-PLACES``, and that of their squares, of ``2**(-2 PLACES)``."""

    count: int
    total: int
    squares: int

    @property
    def possible(self) -> bool:
        """Whether there can be such numbers, by Cauchy and Schwarz."""
        return self.count >= 0 and self.squares >= 0 and self.total**2 <= self.count * self.squares

    @property
    def sums(self) -> tuple[Fraction, Fraction]:
        """Their sum, and that of their squares."""
        return Fraction(self.total, 1 << PLACES), Fraction(self.squares, 1 << 2 * PLACES)

    @property
    def mean(self) -> float:
        """Their mean, rounded once."""
        return self.total / (self.count << PLACES)

    @property
    def deviation(self) -> float:
        """Their standard deviation (of the population)."""
        scaled = self.count * self.squares - self.total**2
        return math.sqrt(scaled / (self.count**2 << 2 * PLACES))


def moments(values: NDArray[np.float64]) -> Moments:
    """The moments of finite numbers ``(n,)`` below :data:`LARGEST`."""
    total = squares = 0
    for start in range(0, len(values), _CHUNK):
        mantissas, exponents = _whole(values[start : start + _CHUNK])
        for exponent in np.unique(exponents).tolist():
            group = mantissas[exponents == exponent]
            first, second, third = group >> 2 * _PART, (group >> _PART) & _MASK, group & _MASK
            shift = exponent + PLACES
            total += _shifted((_sum(first) << 2 * _PART) + (_sum(second) << _PART) + _sum(third), shift)
            parts = (
                _sum(third * third),
                2 * _sum(second * third),
                2 * _sum(first * third) + _sum(second * second),
                2 * _sum(first * second),
                _sum(first * first),
            )
            squares += _shifted(sum(part << _PART * place for place, part in enumerate(parts)), 2 * shift)
    return Moments(len(values), total, squares)


def to_words(number: int, words: int) -> list[int]:
    """A whole number as words of :data:`WORD` bits, the lowest first; the last one has the sign."""
    lower = [(number >> WORD * place) % 2**WORD for place in range(words - 1)]
    return [*lower, number >> WORD * (words - 1)]


def from_words(words: Sequence[int]) -> int:
    """The number whose words these are, or the sums of several numbers' words."""
    return sum(word << WORD * place for place, word in enumerate(words))


def _whole(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Whole numbers m and e with ``values = m 2**e``, after rounding to multiples of ``2**-PLACES``."""
    fine = np.abs(values) < 2.0 ** (53 - PLACES)
    if fine.any():
        values = np.where(fine, np.ldexp(np.rint(np.ldexp(np.where(fine, values, 0.0), PLACES)), -PLACES), values)
    fractions, exponents = np.frexp(values)
    return np.ldexp(fractions, 53).astype(np.int64), exponents.astype(np.int64) - 53


def _sum(numbers: NDArray[np.int64]) -> int:
    return int(numbers.sum(dtype=np.int64))


def _shifted(number: int, places: int) -> int:
    return number << places if places >= 0 else number >> -places  # which drops zeros alone, after the rounding
