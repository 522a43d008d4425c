"""Lower bounds of epsilon stay below the epsilon of mechanisms whose epsilon is known, and say something of leaky ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.attacks.inference.empirical_epsilon import LowerBound, epsilon_from_one_run, epsilon_from_rates, one_run_epsilon
from fedpriv.attacks.inference.membership import Array, Mask

Bound = Callable[..., LowerBound]
BOTH = pytest.mark.parametrize("bound", [epsilon_from_rates, epsilon_from_one_run])
MEMBERS = np.arange(400) < 200


def randomised_response(epsilon: float, seed: int) -> Array:
    """Says who is a member and lies with probability ``1 / (1 + e^epsilon)``: exactly (epsilon, 0)-DP."""
    truth = np.random.default_rng(seed).random(400) < 1 / (1 + np.exp(-epsilon))
    return np.where(truth, MEMBERS, ~MEMBERS).astype(float)


def test_the_numbers_of_the_paper() -> None:
    """Steinke, Nasr & Jagielski 2023, appendix D (p. 46) and section 7 (p. 28)."""
    assert one_run_epsilon(1000, 100, 75, 1e-4) == pytest.approx(0.673, abs=1e-3)
    assert one_run_epsilon(100_000, 1510, 1439, 1e-5) == pytest.approx(2.675, abs=1e-3)
    assert one_run_epsilon(100, 100, 50, 0.0) == 0 == one_run_epsilon(100, 0, 0, 0.0)


@BOTH
def test_randomised_response(bound: Bound) -> None:
    for true in (0.0, 1.0, 3.0):
        found = [bound(randomised_response(true, seed), MEMBERS, 1e-5, seed=seed).epsilon for seed in range(60)]
        assert np.mean(np.array(found) > true) <= 0.1  # 5 % are allowed to be above
        assert np.mean(found) > true / 4 or true == 0


@BOTH
def test_gaussian_mechanism(bound: Bound) -> None:
    """Sensitivity 1, noise s: (e, delta)-DP with delta = Phi(1/2s - e s) - e^e Phi(-1/2s - e s) (Balle & Wang 2018)."""
    noise, true = 0.5, 10.0
    delta = norm.cdf(1 / (2 * noise) - true * noise) - np.exp(true) * norm.cdf(-1 / (2 * noise) - true * noise)
    draws = [MEMBERS + np.random.default_rng(seed).normal(0, noise, 400) for seed in range(40)]
    found = np.array([bound(scores, MEMBERS, float(delta), seed=seed).epsilon for seed, scores in enumerate(draws)])
    assert (found > true).mean() <= 0.1 and np.median(found) > 0.5


@BOTH
def test_random_scores_give_no_bound_with_many_thresholds(bound: Bound) -> None:
    found = [bound(np.random.default_rng(seed).normal(size=400), MEMBERS, seed=seed).epsilon for seed in range(80)]
    assert np.mean(np.array(found) > 0) <= 0.1
    assert bound(np.zeros(400), MEMBERS).epsilon == 0


@BOTH
def test_more_samples_and_less_delta_show_more(bound: Bound) -> None:
    perfect = MEMBERS.astype(float)
    few = bound(perfect[180:220], MEMBERS[180:220]).epsilon
    assert 0 < few < bound(perfect, MEMBERS).epsilon
    assert bound(perfect, MEMBERS, delta=0.05).epsilon < bound(perfect, MEMBERS, delta=1e-5).epsilon
    assert bound(perfect, MEMBERS, confidence=0.99).epsilon < bound(perfect, MEMBERS, confidence=0.9).epsilon


def test_a_sure_no_counts_as_much_as_a_sure_yes() -> None:
    """A third of the non-members scores below all others: only the mirrored form of the rates sees it."""
    members: Mask = np.arange(1200) < 600
    scores = np.random.default_rng(0).normal(size=1200)
    scores[1000:] = -9.0
    assert epsilon_from_rates(scores, members).epsilon > 1.5
    assert epsilon_from_one_run(scores, members).epsilon > 2
