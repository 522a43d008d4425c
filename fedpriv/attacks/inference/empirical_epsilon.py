"""Empirical epsilon: a lower bound from an attack's success, at a given confidence. The accountant gives the upper bound.

Thresholds are chosen on one random half of the samples and evaluated on the other, so that the choice does not invalidate the
confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import beta, binom

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

CONFIDENCE = 0.95
_TRIED = 64  # largest number of thresholds
_MOST = 50.0  # an epsilon that no feasible number of samples can show


@dataclass(frozen=True)
class LowerBound:
    """With this confidence the mechanism is not (e, delta)-DP for any e below ``epsilon``.

    Attributes:
        epsilon: 0 where the attack shows nothing.
        samples: number of them behind the bound.
    """

    epsilon: float
    delta: float
    confidence: float
    samples: int


def epsilon_from_rates(
    scores: Array, members: Mask, delta: float = 0.0, confidence: float = CONFIDENCE, seed: int = 0
) -> LowerBound:
    """``ln((TPR - delta) / FPR)`` or ``ln((TNR - delta) / FNR)``, each rate at the worse end of its Clopper-Pearson interval.

    For (e, delta)-DP, ``TPR <= e^e FPR + delta`` (Kairouz et al., ICML 2015). The samples must be independent trials, such as one
    sample for each of many models; for many samples of one model see :func:`epsilon_from_one_run`.

    Args:
        scores, members: ``(n,)`` each; higher scores for likelier members.
    """
    search, count = _random_halves(members, int(members.sum()), int((~members).sum()), seed)
    thresholds = _thresholds(scores[search])
    alpha = (1 - confidence) / 2  # two intervals
    if not len(thresholds):
        return LowerBound(0.0, delta, confidence, int(count.sum()))

    def bounds(part: Mask, at: Array) -> Array:
        hits_above, alarms = scores[part & members][:, None] >= at, scores[part & ~members][:, None] >= at
        forms = ((hits_above, alarms), (~alarms, ~hits_above))
        return np.stack([np.log(np.maximum((_low(hits, alpha) - delta) / _high(misses, alpha), 1)) for hits, misses in forms])

    form, best = np.unravel_index(bounds(search, thresholds).argmax(), (2, len(thresholds)))
    return LowerBound(float(bounds(count, thresholds[[best]])[form, 0]), delta, confidence, int(count.sum()))


def epsilon_from_one_run(
    scores: Array, members: Mask, delta: float = 0.0, confidence: float = CONFIDENCE, seed: int = 0
) -> LowerBound:
    """A bound from many samples of one training run, which need not be independent.

    Steinke, Nasr & Jagielski (NeurIPS 2023, thm. 5.2). Samples that score above one threshold are guessed to be members, those
    below another to be non-members, and the rest is not guessed; epsilon bounds how many of these guesses can be right. A sample
    must have been a member with probability 1/2, so equally many members and non-members are drawn (by ``seed``). Neighbouring
    data sets differ in whether one sample is used.

    Args:
        scores, members: ``(n,)`` each; higher scores for likelier members.
    """
    of_each = min(int(members.sum()), int((~members).sum()))
    search, count = _random_halves(members, of_each, of_each, seed)
    thresholds = np.array([-np.inf, *_thresholds(scores[search]), np.inf])
    alpha = 1 - confidence

    def guesses(part: Mask) -> tuple[Array, Array]:
        """(right guesses, guesses) for every pair of lower and upper threshold ``(T, T)``."""
        above, inside = scores[part][:, None] >= thresholds, members[part][:, None]
        yes, no = (above & inside).sum(0), (~above & ~inside).sum(0)
        return no[:, None] + yes, (~above).sum(0)[:, None] + above.sum(0)

    right, guessed = guesses(search)
    ordered = np.triu(np.ones_like(right, dtype=np.bool_))  # the lower threshold must not exceed the upper one
    lower, upper = np.unravel_index(np.where(ordered, _low_share(right, guessed, alpha), -1).argmax(), right.shape)
    right, guessed = guesses(count)
    size, v, r = int(count.sum()), int(right[lower, upper]), int(guessed[lower, upper])
    return LowerBound(one_run_epsilon(size, r, v, delta, confidence), delta, confidence, size)


def one_run_epsilon(samples: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The largest epsilon under which ``right`` of ``guesses`` are less likely than ``1 - confidence``; 0 if there is none."""
    steps = np.arange(1, right + 1)

    def surprise(epsilon: float) -> float:
        share = 1 / (1 + math.exp(-epsilon))
        # The effect of delta: with probability at most 2 m delta / i, i more guesses are right.
        missed = np.cumsum(binom.pmf(right - steps, guesses, share)) / steps
        return float(binom.sf(right - 1, guesses, share) + 2 * samples * delta * missed.max(initial=0.0))

    alpha = 1 - confidence
    return float(brentq(lambda e: surprise(e) - alpha, 0.0, _MOST)) if surprise(0.0) < alpha else 0.0


def _random_halves(members: Mask, inside: int, outside: int, seed: int) -> tuple[Mask, Mask]:
    """Two disjoint random halves of ``inside`` members and ``outside`` non-members."""
    generator = np.random.default_rng(seed)
    first, second = np.zeros((2, len(members)), dtype=np.bool_)
    for group, size in ((members, inside), (~members, outside)):
        drawn = generator.permutation(np.flatnonzero(group))[:size]
        first[drawn[: size // 2]] = second[drawn[size // 2 :]] = True
    return first, second


def _thresholds(scores: Array) -> Array:
    distinct = np.unique(scores)
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, _TRIED).round().astype(int))] if len(distinct) else distinct


def _low(trials: Mask, alpha: float) -> Array:
    """The lower Clopper-Pearson bound on each column's rate ``(n, T) -> (T,)``."""
    return _low_share(trials.sum(0), np.full(trials.shape[1], len(trials)), alpha)


def _low_share(right: Array, guesses: Array, alpha: float) -> Array:
    return np.where(right > 0, beta.ppf(alpha, np.maximum(right, 1), guesses - right + 1), 0.0)


def _high(trials: Mask, alpha: float) -> Array:
    return 1 - _low(~trials, alpha)
