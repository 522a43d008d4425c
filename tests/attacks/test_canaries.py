"""Bounds from canaries: below a known epsilon as often as they say, and larger the more canaries there are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.attacks.inference.canaries import canary_bounds, fitted_mu, right_guesses
from fedpriv.attacks.inference.gaussian_dp import MOST, delta_of, epsilon_of, mu_of, one_run_mu
from fedpriv.attacks.inference.membership import Array, Mask
from tests.marks import quick_first

DELTA = 1e-5
IDEAL = [
    (1, 1000, (0.23, 0.32, 0.61)),
    (2, 1000, (0.74, 1.01, 1.57)),
    (4, 1000, (1.46, 2.14, 3.53)),
    (8, 1000, (2.81, 4.42, 7.37)),
    (8, 5000, (3.46, 4.95, 7.70)),
]
"""Epsilon, canaries, and the medians of one run, f-DP and Gaussian fit over 100 draws."""
NAMES = ["one run", "Clopper-Pearson", "f-DP, one run", "Gaussian fit"]


def gaussian(mu: float, count: int, seed: int) -> tuple[Array, Mask]:
    """Scores of a mu-GDP mechanism on ideal canaries, and which were used."""
    draw = np.random.default_rng(seed)
    used = draw.random(count) < 0.5
    return used * mu + draw.normal(size=count), used


def found(scores: Array, used: Mask, claim: float, delta: float = DELTA) -> list[float]:
    return [bound.epsilon for bound in canary_bounds(scores, used, claim, delta)]


def draws(mu: float, count: int, number: int, claim: float) -> Array:
    """``(number, 4)``: the bounds in each of several draws."""
    return np.array([found(*gaussian(mu, count, seed), claim) for seed in range(number)])


def test_epsilon_of_a_gaussian_mechanism() -> None:
    for mu in (0.2, 1.0, 3.0, 12.0):
        epsilon = epsilon_of(mu, DELTA)
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(DELTA, rel=1e-4)
        assert delta_of(mu, epsilon) == pytest.approx(DELTA, rel=1e-6) and mu_of(epsilon, DELTA) == pytest.approx(mu, rel=1e-6)
    assert epsilon_of(0.0, DELTA) == epsilon_of(-1.0, DELTA) == epsilon_of(1e-6, DELTA) == 0
    assert mu_of(1e9, DELTA) == MOST and delta_of(MOST, 1e9) == 0


def slowly_refuted(mu: float, m: int, c: int, right: int, tau: float) -> bool:
    """The recursion of Mahloujifar, Melis & Chaudhuri 2025 over all of r and h, for two choices."""
    r, h = np.zeros(right + 1), np.zeros(right + 1)
    r[right], h[right] = tau * right / m, tau * (c - right) / m
    for i in reversed(range(right)):
        h[i] = max(h[i + 1], norm.cdf(norm.ppf(min(r[i + 1], 1)) - mu))
        r[i] = r[i + 1] + i / (c - i) * (h[i] - h[i + 1])
    return bool(r[0] + h[0] > c / m)


@pytest.mark.parametrize(("m", "c", "right"), [(20, 20, 18), (100, 40, 33), (100, 10, 10), (60, 60, 44)])
def test_the_largest_mu_that_the_algorithm_refutes(m: int, c: int, right: int) -> None:
    mu = one_run_mu(m, c, right, 0.95)
    assert mu > 0.05
    assert slowly_refuted(mu * 0.99, m, c, right, 0.05) and not slowly_refuted(mu * 1.01, m, c, right, 0.05)


def test_guesses() -> None:
    used = np.array([True, True, False, True, False, False])
    scores = np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert [right_guesses(scores, used, guesses) for guesses in (0, 2, 4, 6)] == [0, 2, 4, 4]
    assert one_run_mu(100, 100, 50, 0.95) == 0 == one_run_mu(100, 0, 0, 0.95)


@pytest.mark.parametrize(("claim", "count", "medians"), quick_first(IDEAL, 2))
def test_what_ideal_canaries_show_of_a_claim_that_is_tight(claim: float, count: int, medians: tuple[float, ...]) -> None:
    bounds = np.median(draws(mu_of(claim, DELTA), count, 7, claim), axis=0)[[0, 2, 3]]
    assert bounds == pytest.approx(medians, rel=0.15, abs=0.25)
    assert (bounds < claim).all()


@pytest.mark.parametrize(("number", "claim", "count"), quick_first([(50, 2, 60), (150, 1, 100), (100, 2, 200), (50, 8, 1000)]))
def test_bounds_exceed_a_tight_claim_in_a_twentieth_of_draws(number: int, claim: float, count: int) -> None:
    above = (draws(mu_of(claim, DELTA), count, number, claim) > claim).mean(axis=0)
    assert (above <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / number)).all(), dict(zip(NAMES, above, strict=True))


@pytest.mark.parametrize(("number", "count"), quick_first([(60, 60), (100, 200)]))
def test_the_one_run_bound_holds_where_it_is_tight(number: int, count: int) -> None:
    """Randomised response spends all of its epsilon on every canary; the other bounds assume another mechanism."""
    above = 0
    for seed in range(number):
        draw = np.random.default_rng(seed)
        used, truth = draw.random((2, count)) < [[0.5], [1 / (1 + math.exp(-1.0))]]
        scores = np.where(truth, used, ~used) + 0.1 * draw.random(count)
        above += found(scores, used, 1.0, 1e-9)[0] > 1.0
    assert above / number <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / number)


def test_scores_that_say_nothing_show_next_to_nothing() -> None:
    bounds = draws(0.0, 100, 60, 2.0)
    assert ((bounds > 0).mean(axis=0) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)).all()
    assert (bounds < 2.0).all() and (np.median(bounds, axis=0) == 0).all()
    assert found(np.zeros(100), np.arange(100) % 2 == 0, 2.0) == [0, 0, 0, 0]


def test_separated_scores_show_more_the_more_there_are() -> None:
    bounds = []
    for count in (10, 100, 1000):
        scores, used = gaussian(40.0, count, count)
        bounds.append(found(scores, used, 8.0))
    few, some, many = np.array(bounds)
    assert (few < some).all() and (some < many).all()
    assert few[0] < -math.log(0.05 ** (-1 / 10) - 1) + 1e-6, "ten right guesses show no more, whatever the mechanism"
    assert many[2] > 8.0, "a mechanism far above its claim is guessed for, too"
    assert many[3] > 500, "the Gaussian fit shows mu = 40, about (mu^2)/2"


def test_negative_scores_and_few_canaries_show_nothing() -> None:
    scores, used = gaussian(3.0, 200, 0)
    assert found(-scores, used, 4.0) == [0, 0, 0, 0]
    for count in range(6):
        assert all(math.isfinite(bound) for bound in found(scores[:count], used[:count], 4.0))
    assert 0 < fitted_mu(np.array([1.0, 1.0, 0.0, 0.0]), np.array([True, True, False, False])) < MOST


def test_more_delta_and_more_confidence_show_less() -> None:
    scores, used = gaussian(2.0, 400, 1)
    usual = np.array(found(scores, used, 8.0))
    assert (np.array(found(scores, used, 8.0, 0.01)) < usual).all()
    surer = np.array([bound.epsilon for bound in canary_bounds(scores, used, 8.0, DELTA, confidence=0.99)])
    assert (surer < usual).all()


def test_every_bound_says_what_it_assumes() -> None:
    bounds = canary_bounds(*gaussian(1.0, 100, 0), 4.0, DELTA)
    assert [bound.name for bound in bounds] == NAMES and len({bound.assumes for bound in bounds}) == 4
    assert all((bound.delta, bound.confidence) == (DELTA, 0.95) for bound in bounds)
