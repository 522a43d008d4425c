"""The ROC of two Gaussians has a closed form; intervals must cover; what cannot be resolved is not made up."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.attacks.inference.membership import Array, Mask
from fedpriv.attacks.scoring.operating_points import area, operating_points


def gaussians(distance: float, members: int, others: int, seed: int = 0) -> tuple[Array, Mask]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=members + others) + distance * (np.arange(members + others) < members), np.arange(
        members + others
    ) < members


def test_two_gaussians() -> None:
    result = operating_points(*gaussians(1.0, 20000, 20000))
    assert result.auc.value == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.005)
    for rate in (0.01, 0.001):
        point = result.at[rate]
        assert point is not None and point.false_alarms.share <= rate
        assert point.true_positives.share == pytest.approx(norm.sf(norm.isf(rate) - 1), rel=0.15)
    assert result.roc[0] == (0.0, 0.0) and result.roc[-1] == (1.0, 1.0) and result.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("distance", [0.0, 1.0, 2.5])
def test_the_interval_of_the_area_covers(distance: float) -> None:
    true, tries = norm.cdf(distance / np.sqrt(2)), 150
    result = [area(*gaussians(distance, 20, 30, seed)) for seed in range(tries)]
    covered = sum(auc.low <= true <= auc.high for auc in result) / tries
    assert 0.95 - 3 * np.sqrt(0.95 * 0.05 / tries) <= covered <= 0.995
    assert np.mean([auc.low > 0.5 for auc in result]) <= 0.05 or distance > 0


def test_complete_separation_is_no_certainty() -> None:
    members = np.arange(10) < 5
    apart, tied = area(members.astype(float), members), area(np.zeros(10), members)
    assert apart.value == apart.high == 1.0 and 0.5 < apart.low < 0.9
    assert tied.value == 0.5 and tied.low < 0.3 and tied.high > 0.7
    backwards = area(-members.astype(float), members)
    assert backwards.low == 0 and backwards.high == pytest.approx(1 - apart.low)


def test_monotone_maps_and_order_change_nothing() -> None:
    scores, members = gaussians(1.0, 150, 150)
    order = np.random.default_rng(1).permutation(300)
    expected = operating_points(scores, members)
    assert operating_points(np.exp(scores), members) == expected
    assert operating_points(scores[order], members[order]) == expected
    mirrored = operating_points(-scores, ~members)
    assert mirrored.auc.value == pytest.approx(expected.auc.value)


@pytest.mark.slow
def test_how_likely_guessing_finds_as_many_is_exact() -> None:
    """Against scores drawn at random, and by hand: one member above all of 100 others, of whom one may be accused."""
    members = np.arange(101) < 1
    scores = np.where(members, 200.0, np.arange(101.0))
    point = operating_points(scores, members).at[0.01]
    assert point is not None and point.by_chance == pytest.approx(2 / 101)
    assert point.true_positives.successes == 1 and point.false_alarms.successes == 1
    draw = np.random.default_rng(0)
    result = [operating_points(draw.normal(size=160), np.arange(160) < 60).at[0.01] for _ in range(200)]
    for level in (0.02, 0.05, 0.2):
        spread = np.sqrt(level * (1 - level) / len(result))
        assert np.mean([point is not None and point.by_chance <= level for point in result]) <= level + 3 * spread
    sure = operating_points(*gaussians(2.0, 60, 100)).at[0.01]
    assert sure is not None and sure.by_chance < 1e-4


def test_too_few_non_members_are_said_and_not_counted() -> None:
    result = operating_points(*gaussians(5.0, 50, 50))
    assert result.at == {0.01: None, 0.001: None}
    assert result.notes[0] == "50 non-members do not resolve a false-positive rate of 1.0%, which needs 100"
    assert "0.1%, which needs 1000" in result.notes[1]
    result = operating_points(*gaussians(5.0, 50, 100))
    assert result.at[0.01] is not None and result.at[0.001] is None and len(result.notes) == 1


def test_false_alarms_stay_within_the_limit_with_ties() -> None:
    members = np.arange(400) < 200
    constant = operating_points(np.zeros(400), members).at[0.01]
    assert constant is not None and constant.true_positives.successes == constant.false_alarms.successes == 0
    scores = np.random.default_rng(0).integers(0, 5, 400) + members
    point = operating_points(scores.astype(float), members).at[0.01]
    assert point is not None and point.false_alarms.share <= 0.01 and point.true_positives.share > 0.1


def test_infinite_scores_are_extreme_and_nan_is_refused() -> None:
    members = np.array([True, True, False, False])
    assert area(np.array([np.inf, 1.0, 0.0, -np.inf]).clip(-1e300, 1e300), members).value == 1.0
    assert operating_points(np.array([np.inf, 1.0, 0.0, -np.inf]), members).auc.value == 1.0
    with pytest.raises(ValueError, match="1 NaN"):
        operating_points(np.array([np.nan, 1.0, 0.0, 0.0]), members)
    with pytest.raises(ValueError, match="0 non-members"):
        operating_points(np.zeros(3), np.ones(3, dtype=bool))
