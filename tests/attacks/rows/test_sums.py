"""Three numbers are told by their sums where a search through all others finds no second way."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement

import pytest

from fedpriv.attacks.rows.sums import three_numbers


@pytest.mark.parametrize("shift", [0, -7, 10**6])
def test_those_of_a_search_through_all(shift: int) -> None:
    """All triples below 24, and every way to make their sums: no number is further from the mean than twice their deviation."""
    ways = Counter((a + b + c, a * a + b * b + c * c) for a, b, c in combinations_with_replacement(range(-24, 48), 3))
    for triple in combinations_with_replacement(range(24), 3):
        moved = [Fraction(number + shift) for number in triple]
        found = three_numbers(sum(moved, Fraction()), sum((number**2 for number in moved), Fraction()))
        only = ways[sum(triple), sum(number**2 for number in triple)] == 1
        assert found == (tuple(map(float, moved)) if only else None)


def test_the_rounding_of_decimals_tells_which() -> None:
    both = [0.1, 0.5, 0.6], [0.2, 0.3, 0.7]
    assert {round(sum(triple), 9) for triple in both} == {1.2} and {round(sum(x * x for x in triple), 9) for triple in both} == {
        0.62
    }
    for triple in both:
        exact = [Fraction(number) for number in triple]
        assert three_numbers(sum(exact, Fraction()), sum((x * x for x in exact), Fraction())) == tuple(triple)
