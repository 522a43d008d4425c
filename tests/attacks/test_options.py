"""Options of attacks, as they are given on the command line and in Python."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

import pytest

from fedpriv.attacks.core.options import taken


def given(default: object, value: object) -> object:
    """A value of an attack's option ``it`` with this default."""
    return taken(make_dataclass("Attack", [("it", Any, default)]), {"it": value})["it"]


RIGHT = [(1, 3, 3), (1.0, 3, 3.0), (True, False, False), (None, 3, 3), (None, None, None), ("a", "b", "b")]


@pytest.mark.parametrize(("default", "value", "output"), [*RIGHT, ((1, 0.5), [2, 1], (2, 1.0))])
def test_options_of_the_right_kind(default: object, value: object, output: object) -> None:
    result = given(default, value)
    assert result == output and type(result) is type(output)


@pytest.mark.parametrize(
    ("default", "value"),
    [(1, True), (1, 2.0), (1, None), (1, -1), (1.0, float("inf")), (1.0, "x"), (True, 1), (None, "x"), ("a", 1), ((1, 2), [1])],
)
def test_options_of_the_wrong_kind(default: object, value: object) -> None:
    with pytest.raises(TypeError, match="it must be"):
        given(default, value)
