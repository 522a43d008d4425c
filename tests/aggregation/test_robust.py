"""Merges that hold against bad uploads: by NumPy's and SciPy's functions or loops, and what a bad client can change."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.methods.build import with_options
from tests.aggregation.rounds import doubles, merge, uploads

ROBUST = ("median", "trimmed-mean", "multi-krum")

rounds = st.integers(1, 9).flatmap(
    lambda k: st.lists(st.lists(st.floats(-3, 3), min_size=6, max_size=6), min_size=k, max_size=k).map(doubles)
)
START = doubles([1, 2, 2, 0, 3, 4])


@settings(max_examples=50, deadline=None)
@given(rounds)
def test_the_median_is_numpys(rows: Tensor) -> None:
    np.testing.assert_allclose(merge("median", uploads(START, rows)).row, np.median(rows.numpy(), axis=0), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(rounds, st.integers(0, 49))
def test_the_trimmed_mean_is_scipys(rows: Tensor, percent: int) -> None:
    actual = merge("trimmed-mean", uploads(START, rows), trim=percent / 100).row
    cut = (percent * len(rows) // 100 + 0.5) / len(rows)
    np.testing.assert_allclose(actual, stats.trim_mean(rows.numpy(), cut, axis=0), atol=1e-12)


@pytest.mark.parametrize("percent", range(50))
def test_shares_of_many_uploads_are_whole_numbers_of_them(percent: int) -> None:
    """The product of 0.29 and 100 is less than 29."""
    rows = START + torch.randn(100, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    trimmed = merge("trimmed-mean", uploads(START, rows), trim=percent / 100)
    assert trimmed.report["trimmed_mean/left_out"] == 2 * percent
    assert merge("multi-krum", uploads(START, rows), bad=percent / 100).report["krum/holds_against"] == min(percent, 48)


def krum_by_loops(rows: np.ndarray, bad: int, keep: int) -> np.ndarray:
    count = len(rows)
    scores = []
    for k in range(count):
        distances = sorted(float(((rows[k] - rows[i]) ** 2).sum()) for i in range(count) if i != k)
        scores.append(sum(distances[: count - bad - 2]))
    chosen = sorted(range(count), key=lambda k: scores[k])[:keep]
    return np.mean([rows[k] for k in chosen], axis=0)


@pytest.mark.parametrize(("count", "share", "bad"), [(3, 0.4, 0), (5, 0.2, 1), (7, 0.3, 2), (10, 0.2, 2)])
def test_multi_krum_is_the_loop_over_pairs(count: int, share: float, bad: int) -> None:
    rows = torch.randn(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    for keep in (1, None):
        merged = merge("multi-krum", uploads(START, rows), bad=share, keep=keep)
        np.testing.assert_allclose(merged.row, krum_by_loops(rows.numpy(), bad, keep or count - bad), atol=1e-12)
        assert merged.report["krum/holds_against"] == bad


@pytest.mark.parametrize("bound", [0.5, "median"])
def test_the_norm_bounded_mean_is_the_loop_over_clients(bound: float | str) -> None:
    rows = START + torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    changes = [(row - START).numpy() for row in rows]
    largest = np.median([np.linalg.norm(change) for change in changes]) if bound == "median" else bound
    expected = START.numpy() + sum(change * min(1, largest / np.linalg.norm(change)) for change in changes) / 5
    np.testing.assert_allclose(merge("norm-bounded", uploads(START, rows), bound=bound).row, expected, atol=1e-12)
    still = uploads(START, START.expand(3, 6))
    torch.testing.assert_close(merge("norm-bounded", still, bound=bound).row, START)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("scale", [10.0, 1e6])
def test_bad_uploads_do_not_take_the_model_out_of_the_good_ones(name: str, scale: float) -> None:
    """Two of ten; the mean follows them."""
    good = START + torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    radius = max(float((a - b).norm()) for a, b in combinations(good, 2))
    for bad in ([scale, scale], [scale, -scale]):
        rows = torch.cat([good, START + doubles(bad)[:, None]])
        assert float((merge(name, uploads(START, rows)).row - good.mean(0)).norm()) < radius
    moved = merge("mean", uploads(START, torch.cat([good, START + doubles([[scale], [scale]])]))).row
    assert float((moved - good.mean(0)).norm()) > radius / 2


def test_a_bad_client_moves_the_norm_bounded_mean_by_its_share_of_the_bound() -> None:
    good = START.expand(9, 6)
    far = merge("norm-bounded", uploads(START, torch.cat([good, START[None] + 1e6])), bound=2.0).row
    assert math.isclose(float((far - START).norm()), 0.1 * 2.0, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("trimmed-mean", "trim", 0.5), ("multi-krum", "bad", 0.5), ("multi-krum", "keep", 0), ("norm-bounded", "bound", 0)],
)
def test_options_out_of_range_are_refused(name: str, option: str, value: float) -> None:
    from fedpriv.config import load_config

    with pytest.raises(UsageError, match=option):
        with_options(load_config(None, {"aggregation.name": name, f"aggregation.{option}": value}))
