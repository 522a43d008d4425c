"""Which cases are slow: left out unless ``pytest -m ""`` is called."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from fedpriv.methods import methods

FEW = ("fedavg", "mpfedcon")
"""The methods with which every test of methods is quick: the plain one, and one with all that a method may have."""


def federated() -> list[str]:
    """The methods whose clients train: all but those with all samples in one place."""
    return sorted(name for name, method in methods().items() if not method.pools)


def slow_but(quick: Collection[str], cases: Iterable[Any]) -> list[Any]:
    """``cases`` for parametrize; those that are not named (of a tuple: by its first part) in ``quick`` are marked slow."""
    parts = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*part, marks=() if part[0] in quick else pytest.mark.slow) for part in parts]


def quick_first(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """``cases`` for parametrize; those after the first ``number`` are marked slow."""
    parts = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*part, marks=pytest.mark.slow if place >= number else ()) for place, part in enumerate(parts)]
