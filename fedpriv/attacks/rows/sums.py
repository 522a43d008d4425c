"""Numbers that follow from their exact sum and the exact sum of their squares.

One or two numbers always do. Three whole numbers often do: ages in half of the draws from the census (``adult``), weights of 10^5
in a tenth. With one or two decimal places nearly all do: an exact sum has the rounding of every number, which rules out the other
candidates. Of four whole numbers, few do (ages in 4 % of the draws).
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np

UNITS = (1, 10, 100)
"""The numbers are multiples of one of ``1 / UNITS``."""
_SPREAD = 2**20
"""Most units between the mean and the lowest number that are searched; beyond, nothing is said of the numbers."""
_NEAR = Fraction(1, 2**20)
"""So near to a whole number is the sum of whole numbers of units, after rounding."""


def three_numbers(total: Fraction, squares: Fraction) -> tuple[float, ...] | None:
    """The only three multiples of 1, 0.1 or 0.01 with this sum and this sum of squares, in order; ``None``: there are none, or
    more than one way."""
    for unit in UNITS:
        whole, whole_squares = round(total * unit), round(squares * unit**2)
        if abs(total * unit - whole) > _NEAR or abs(squares * unit**2 - whole_squares) > _NEAR:
            continue
        spread = isqrt(max(0, 2 * (3 * whole_squares - whole**2))) // 3 + 2  # the lowest is at most so far below the mean
        if spread > _SPREAD:
            return None
        triples = [[number / unit for number in triple] for triple in _whole_triples(whole, whole_squares, spread)]
        exact = [triple for triple in triples if _sums(triple) == (total, squares)]
        return tuple(exact[0]) if len(exact) == 1 else None
    return None


def _whole_triples(total: int, squares: int, spread: int) -> list[tuple[int, int, int]]:
    """All ``a <= b <= c`` with this sum and sum of squares; ``b`` and ``c`` follow from ``a``, which is near the mean."""
    shift = total // 3  # so that small numbers are squared
    total, squares = total - 3 * shift, squares - 2 * shift * total + 3 * shift**2
    lowest = np.arange(-spread, 2)
    rest = total - lowest
    gaps = 2 * (squares - lowest**2) - rest**2  # (c - b)**2
    gap = np.sqrt(np.maximum(gaps, 0)).round().astype(np.int64)
    middle = (rest - gap) // 2
    fits = (gap**2 == gaps) & ((rest - gap) % 2 == 0) & (middle >= lowest)
    triples = np.stack([lowest, middle, middle + gap], 1)[fits].tolist()
    return [(a + shift, b + shift, c + shift) for a, b, c in triples]


def _sums(numbers: list[float]) -> tuple[Fraction, Fraction]:
    exact = [Fraction(number) for number in numbers]
    return sum(exact, Fraction()), sum((number**2 for number in exact), Fraction())
