"""Lower bounds on epsilon from canaries: contributions of the largest allowed norm, half of which one training run used.

Each canary is used with probability 1/2, independently, and gets a score that is higher for canaries that were likelier used.
Those with the highest scores are guessed to be used, and as many with the lowest scores are guessed not to be. Two numbers of
guesses are fixed in advance, from the number of canaries and the claimed epsilon: the one that gives the largest bound if the
claim is tight, and the one that does if the noise is only a third of what is claimed. The bound is the larger of the two results,
each at half of the error (Bonferroni). So the scores do not choose the number of guesses, and each bound holds at its confidence.
Bounds of different names do not hold simultaneously.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtr, ndtri

from fedpriv.attacks.inference.empirical_epsilon import CONFIDENCE, Array, Mask, epsilon_from_rates, one_run_epsilon
from fedpriv.attacks.inference.gaussian_dp import MOST, epsilon_of, mu_of, one_run_mu

_SHARES = tuple(share / 100 for share in (1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100))
"""Shares of the canaries that may be guessed."""
_MU_FACTORS = (1.0, 3.0)
"""Multiples of the claim's mu for which the numbers of guesses are chosen."""

OfGuesses = Callable[[int, int, int, float, float], float]
"""(canaries, guesses, right guesses, delta, confidence) -> epsilon."""


@dataclass(frozen=True)
class CanaryBound:
    """With this confidence the mechanism is not (e, delta)-DP for any e below ``epsilon``, under the assumptions.

    Attributes:
        epsilon: 0 where the canaries show nothing.
        guesses: the numbers of guesses, one or two; ``None``: the bound uses all scores.
    """

    name: str
    epsilon: float
    delta: float
    confidence: float
    assumes: str
    guesses: tuple[int, ...] | None = None


def canary_bounds(
    scores: Array, used: Mask, claim: float, delta: float, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[CanaryBound, ...]:
    """All bounds: Steinke, Nasr & Jagielski (NeurIPS 2023, thm. 5.2), which assumes nothing; Clopper-Pearson on rates; f-DP in
    one run (Mahloujifar, Melis & Chaudhuri, arXiv:2410.22235); and a Gaussian fit, in which every score counts.

    Args:
        scores, used: ``(n,)`` each; ``used`` was drawn by independent fair coins, before training.
        claim: the claimed epsilon, from which the numbers of guesses follow.
        seed: of the halves of the canaries on which the Clopper-Pearson bound chooses and evaluates its threshold.
    """

    def guessed(name: str, of_guesses: OfGuesses, assumes: str) -> CanaryBound:
        guesses_made = _guesses(of_guesses, len(scores), claim, delta, confidence)
        each = 1 - (1 - confidence) / len(guesses_made)
        bounds = [of_guesses(len(scores), guesses, right_guesses(scores, used, guesses), delta, each) for guesses in guesses_made]
        return CanaryBound(name, max(bounds), delta, confidence, assumes, guesses_made)

    return (
        guessed("one run", one_run_epsilon, "nothing"),
        CanaryBound(
            "Clopper-Pearson",
            epsilon_from_rates(scores, used, delta, confidence, seed).epsilon,
            delta,
            confidence,
            "independent canaries, as if each had a training run of its own",
        ),
        guessed(
            "f-DP, one run",
            _one_run_gaussian,
            "the trade-off curve of a Gaussian mechanism",
        ),
        CanaryBound(
            "Gaussian fit",
            epsilon_of(fitted_mu(scores, used, confidence), delta),
            delta,
            confidence,
            "independent Gaussian scores, with one variance for used and unused canaries",
        ),
    )


def right_guesses(scores: Array, used: Mask, guesses: int) -> int:
    """How many guesses are right: half of them guess "used" of the highest scores, half "unused" of the lowest."""
    order = np.argsort(scores, kind="stable")
    each = guesses // 2
    return int(used[order[len(order) - each :]].sum() + (~used[order[:each]]).sum())


def fitted_mu(scores: Array, used: Mask, confidence: float = CONFIDENCE) -> float:
    """The lower confidence bound of the difference of the means in standard deviations, which is mu of a Gaussian mechanism.

    By the large-sample variance of a standardised difference (Hedges & Olkin 1985, ch. 5, eq. 8).
    """
    inside, outside = scores[used], scores[~used]
    if min(len(inside), len(outside)) < 2:
        return 0.0
    freedom = len(scores) - 2
    spread = math.sqrt(float(((len(inside) - 1) * inside.var(ddof=1) + (len(outside) - 1) * outside.var(ddof=1)) / freedom))
    apart = float(inside.mean() - outside.mean())
    if apart <= 0:
        return 0.0
    mu = min(apart / spread, MOST) if spread > 0 else MOST
    error = math.sqrt(1 / len(inside) + 1 / len(outside) + mu * mu / (2 * freedom))
    return max(0.0, mu + float(ndtri(1 - confidence)) * error)


def _one_run_gaussian(samples: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    return epsilon_of(one_run_mu(samples, guesses, right, confidence), delta)


@lru_cache(maxsize=256)
def _guesses(of_guesses: OfGuesses, samples: int, claim: float, delta: float, confidence: float) -> tuple[int, ...]:
    """The even numbers of guesses with the largest bounds for a Gaussian mechanism that spends the claim, or more."""
    if samples < 2:
        return (0,)
    tried = sorted({2 * max(1, int(share * samples / 2)) for share in _SHARES})

    def shown(guesses: int, mu: float) -> float:
        return of_guesses(samples, guesses, _expected_right(mu, samples, guesses), delta, confidence)

    wanted = [min(MOST, factor * mu_of(claim, delta)) for factor in _MU_FACTORS]
    return tuple(sorted({max(tried, key=partial(shown, mu=mu)) for mu in wanted}))


def _expected_right(mu: float, samples: int, guesses: int) -> int:
    """The average number of right guesses under a Gaussian mechanism, rounded down."""
    share, low, high = guesses / samples, -MOST, 2 * MOST
    for _ in range(60):  # the score above which half of the guesses lie: scores are N(0, 1) or N(mu, 1)
        middle = (low + high) / 2
        low, high = (middle, high) if ndtr(-middle) + ndtr(mu - middle) > share else (low, middle)
    hits, alarms = float(ndtr(mu - low)), float(ndtr(-low))
    return math.floor(guesses * hits / (hits + alarms))
