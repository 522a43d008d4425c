"""Numbers of the audit's pages: a bound stays one as printed."""

from __future__ import annotations

import math

import pytest

from fedpriv.audit.formats import at_most, bound


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.0049, "8.01"),
        (8.0, "8"),
        (7.991, "8"),
        (0.12301, "0.124"),
        (123.4, "124"),
        (99.91, "100"),
        (math.inf, "inf"),
        (0.0, "0"),
    ],
)
def test_an_upper_bound_is_rounded_up(value: float, text: str) -> None:
    assert bound(value) == text and float(text) >= value


def test_so_is_the_upper_end_of_an_interval() -> None:
    assert [at_most(share) for share in (0.0140, 0.05, 0.0507, 1.0, 0.0)] == ["2%", "5%", "6%", "100%", "0%"]
