"""Gaussian differential privacy, mu-GDP (Dong, Roth & Su 2022): conversion to epsilon, and the mu that guesses refute."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

MOST = 50.0
"""A mu that no feasible number of canaries can show."""
_LEAST = 1e-6


def delta_of(mu: float, epsilon: float) -> float:
    """The least delta for an epsilon under mu-GDP: ``Phi(mu/2 - e/mu) - e^e Phi(-mu/2 - e/mu)`` (Balle & Wang 2018)."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(min(0.0, epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))))


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon at which mu-GDP is (epsilon, delta)-DP; 0 for ``mu <= 0``."""
    mu = min(mu, MOST)
    if mu < _LEAST or delta_of(mu, 0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, mu * mu / 2 + mu * (1 - float(ndtri(delta)))))


def mu_of(epsilon: float, delta: float) -> float:
    """The mu that has this epsilon at ``delta``; at most :data:`MOST`."""
    if delta_of(MOST, epsilon) <= delta:
        return MOST
    return float(brentq(lambda mu: delta_of(mu, epsilon) - delta, _LEAST, MOST))


def one_run_mu(samples: int, guesses: int, right: int, confidence: float) -> float:
    """The largest mu that ``right`` of ``guesses`` on one training run refute; 0 if there is none.

    A guess is whether a sample was used. Each of ``samples`` was used with probability 1/2, independently; some are not guessed
    (Mahloujifar, Melis & Chaudhuri, arXiv:2410.22235: the one-run f-DP audit with guesses between two choices).
    """
    alpha = 1 - confidence
    if not samples or not _refuted(_LEAST, samples, guesses, right, alpha):
        return 0.0
    low, high = _LEAST, MOST
    while high - low > 1e-3 * max(low, 0.1):
        middle = (low + high) / 2
        low, high = (middle, high) if _refuted(middle, samples, guesses, right, alpha) else (low, middle)
    return low


def _refuted(mu: float, samples: int, guesses: int, right: int, alpha: float) -> bool:
    """Whether mu-GDP makes that many right guesses less likely than ``alpha``.

    ``yes`` and ``no`` bound the probabilities that a random sample is guessed right or wrong while at least i guesses are right.
    Their sum cannot exceed the share of samples that are guessed.
    """
    yes, no = alpha * right / samples, alpha * (guesses - right) / samples
    for i in range(right - 1, -1, -1):
        if yes + no > guesses / samples:
            return True
        least = max(no, float(ndtr(ndtri(yes) - mu)))
        yes, no = yes + i / (guesses - i) * (least - no), least
    return yes + no > guesses / samples
