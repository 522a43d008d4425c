"""Merges that hold against bad uploads: by NumPy's and SciPy's functions or loops, and what a bad client can change."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fedpriv.aggregation import Uploads
from fedpriv.aggregation.completing import complete
from fedpriv.errors import UsageError
from fedpriv.methods.build import with_options
from tests.aggregation.rounds import doubles, merge, space_of, uploads

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


BRANCHES = space_of(("encoder.image.weight", (1, 3), "weight"), ("encoder.text.weight", (1, 3), "weight"))
IMAGES, TEXTS = slice(0, 3), slice(3, 6)
WITH_TEXTS = [1, 4, 6]
"""Of seven clients those that have texts; 6 is bad."""


def sent_in_part(bad: float) -> Uploads:
    """A round of pairs, in which only some clients send the text branch, and the mean of these stands in for what others did not
    send."""
    rows = START + 0.1 * torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    rows[6] = START + bad
    everything = set(BRANCHES.names)
    senders = [everything if client in WITH_TEXTS else everything - {"encoder.text.weight"} for client in range(7)]
    round_ = replace(uploads(START, rows, BRANCHES), senders=senders)
    complete(round_, senders, [1.0] * 7)
    return round_


def test_a_tensor_that_some_clients_send_is_merged_of_these_alone() -> None:
    round_ = sent_in_part(3.0)
    rows, start = round_.rows.numpy().copy(), START.numpy()
    texts = rows[WITH_TEXTS, TEXTS]
    median = merge("median", round_).row.numpy()
    np.testing.assert_allclose(median[IMAGES], np.median(rows[:, IMAGES], axis=0))
    np.testing.assert_allclose(median[TEXTS], np.median(texts, axis=0))
    trimmed = merge("trimmed-mean", round_, trim=0.4).row.numpy()
    np.testing.assert_allclose(trimmed[IMAGES], stats.trim_mean(rows[:, IMAGES], 0.4, axis=0))
    np.testing.assert_allclose(trimmed[TEXTS], stats.trim_mean(texts, 0.4, axis=0))
    krum = merge("multi-krum", round_).row.numpy()
    np.testing.assert_allclose(krum[IMAGES], rows[:6, IMAGES].mean(0))
    np.testing.assert_allclose(krum[TEXTS], rows[[1, 4], TEXTS].mean(0))
    without = [client for client in range(7) if client not in WITH_TEXTS]
    rows[without, TEXTS] = start[TEXTS]
    changes = [(row - start) * min(1, 0.2 / np.linalg.norm(row - start)) for row in rows]
    bounded = merge("norm-bounded", round_, bound=0.2).row.numpy() - start
    np.testing.assert_allclose(bounded[IMAGES], sum(changes)[IMAGES] / 7)
    np.testing.assert_allclose(bounded[TEXTS], sum(changes)[TEXTS] / 3)


@pytest.mark.parametrize("name", [*ROBUST, "norm-bounded"])
def test_a_bad_client_cannot_move_what_others_do_not_send(name: str) -> None:
    """However far it goes: a mean that stands in for the others would go with it."""
    options = {"trim": 0.4} if name == "trimmed-mean" else {}
    near, far = (merge(name, sent_in_part(bad), **options).row for bad in (1e2, 1e6))
    torch.testing.assert_close(near, far)
    assert float((near - START).norm()) < 1


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("trimmed-mean", "trim", 0.5), ("multi-krum", "bad", 0.5), ("multi-krum", "keep", 0), ("norm-bounded", "bound", 0)],
)
def test_options_out_of_range_are_refused(name: str, option: str, value: float) -> None:
    from fedpriv.config import load_config

    with pytest.raises(UsageError, match=option):
        with_options(load_config(None, {"aggregation.name": name, f"aggregation.{option}": value}))
