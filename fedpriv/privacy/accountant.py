"""Epsilon of Poisson-subsampled Gaussian mechanisms, and the noise for a target epsilon, with the accountants of Opacus.

A history is a sequence of (noise, rate, steps). In each step, each sample (or client) is drawn independently with probability
``rate``, contributes a vector of L2 norm at most C to a sum, and N(0, (noise C)^2) is added. Epsilon is for zero-out adjacency
(:mod:`fedpriv.privacy.ledger`). RDP (Mironov et al. 2019, converted by Balle et al. 2020) gives an upper bound; PRV (Gopi et al.
2021) composes numerically and is tighter.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import UsageError

Accountant = Literal["rdp", "prv"]
Spending = tuple[float, float, int]
"""(noise, rate, steps)"""
History = tuple[Spending, ...]
Plan = tuple[tuple[float, int], ...]
"""(rate, steps) of a future history, whose noise is not yet known."""

_TABLE = 100.0  # largest epsilon for PRV: its table grows with epsilon, to gigabytes, and such a guarantee is useless
_LEAST_DELTA = 1e-11  # smallest delta for PRV: below it, rounding errors of its Fourier transforms are as large as delta
_PRV_AT_MOST = 8  # largest number of histories for which PRV is computed, which takes up to a second for each
_MOST_NOISE = 1e6
_TOLERANCE = 0.01  # of the search for the noise, in epsilon


def _orders() -> list[float]:
    """Opacus' Renyi orders, and higher ones for small epsilons."""
    from opacus.accountants import RDPAccountant  # type: ignore[import-untyped]

    return [*RDPAccountant.DEFAULT_ALPHAS, 64, 80, 96, 128, 192, 256, 512]


_WHOLE = tuple(range(2, 130))
"""Integer orders, whose RDP is cheap."""


def compose(*histories: Sequence[Spending]) -> History:
    """Compose several histories into one, in canonical order."""
    total: dict[tuple[float, float], int] = {}
    for noise, rate, steps in (spending for history in histories for spending in history):
        total[noise, rate] = total.get((noise, rate), 0) + steps
    return tuple((noise, rate, steps) for (noise, rate), steps in sorted(total.items()) if steps)


def history_of(noise: float, plan: Plan, spent: History = ()) -> History:
    """The history of a plan with a noise, after what was spent before."""
    return compose([(noise, rate, steps) for rate, steps in plan], spent)


@lru_cache(maxsize=4096)
def _step_rdp(noise: float, rate: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """RDP of one step, at each order."""
    from opacus.accountants.analysis import rdp  # type: ignore[import-untyped]

    return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders), dtype=np.float64)


def _rdp(history: Sequence[Spending], orders: tuple[float, ...]) -> NDArray[np.float64]:
    total = np.zeros(len(orders))
    for noise, rate, steps in history:
        total += steps * _step_rdp(noise, rate, orders)
    return total


def _converted(rdp: NDArray[np.float64], orders: Sequence[float], delta: float) -> NDArray[np.float64]:
    """RDP ``(..., A)`` -> epsilon ``(...)`` at ``delta`` (Balle et al. 2020, theorem 21); Opacus' conversion, batched."""
    a = np.asarray(orders, dtype=np.float64)
    epsilons = rdp + np.log((a - 1) / a) - (np.log(delta) + np.log(a)) / (a - 1)
    best: NDArray[np.float64] = np.where(np.isnan(epsilons), np.inf, epsilons).min(-1)
    return np.maximum(best, 0.0)  # the formula can be negative for a large delta


def epsilons_rdp(histories: Sequence[Sequence[Spending]], delta: float) -> NDArray[np.float64]:
    """Epsilon of G histories at ``delta`` by Renyi DP ``(G,)``; 0 for an empty history.

    The values are those of :class:`opacus.accountants.RDPAccountant`, but the RDP of a step is cached.
    """
    if not histories:
        return np.zeros(0)
    orders = tuple(_orders())
    spent = _converted(np.stack([_rdp(history, orders) for history in histories]), orders, delta)
    return np.where([len(history) > 0 for history in histories], spent, 0.0)


def epsilon_rdp(history: Sequence[Spending], delta: float) -> float:
    """Epsilon of one history at ``delta`` by Renyi DP."""
    return float(epsilons_rdp([history], delta)[0])


@lru_cache(maxsize=1024)
def _prv(history: History, delta: float) -> float | None:
    from opacus.accountants import PRVAccountant

    engine = PRVAccountant()
    engine.history = list(history)
    try:
        with _quiet():
            estimate = float(engine.get_epsilon(delta))
    except (RuntimeError, ValueError, ArithmeticError, MemoryError):
        return None
    return max(estimate, 0.0) if np.isfinite(estimate) else None  # it can be negative for a large delta


def epsilon_prv(history: Sequence[Spending], delta: float) -> float | None:
    """Epsilon at ``delta`` by privacy loss random variables (the upper end of the estimate).

    ``None`` if it is not computed: for epsilon above 100, delta below 1e-11, or if Opacus' quadrature fails.
    """
    if not history:
        return 0.0
    return None if delta < _LEAST_DELTA or epsilon_rdp(history, delta) > _TABLE else _prv(tuple(history), delta)


def epsilon(history: Sequence[Spending], delta: float, accountant: Accountant) -> float:
    """Epsilon at ``delta`` by RDP, or by PRV if it is requested, available and tighter."""
    bound = epsilon_rdp(history, delta)
    tighter = epsilon_prv(history, delta) if accountant == "prv" else None
    return bound if tighter is None else min(tighter, bound)


def largest_epsilon(histories: Iterable[History], delta: float, accountant: Accountant) -> tuple[float, History]:
    """The largest epsilon of several histories at ``delta``, and its history; (0, ()) without histories.

    PRV is computed for histories in descending order of their RDP bounds, until no other history can exceed the maximum. After
    :data:`_PRV_AT_MOST` histories, the next RDP bound is returned. The result bounds the epsilon of every history.
    """
    distinct = sorted(set(histories))
    bounds = epsilons_rdp(distinct, delta)
    best: tuple[float, History] = (0.0, ())
    computed: list[History] = []
    for index in np.argsort(-bounds, kind="stable").tolist():
        history, bound = distinct[index], float(bounds[index])
        if bound <= best[0]:
            break
        if accountant == "rdp" or len(computed) == _PRV_AT_MOST:
            return bound, history
        if not any(_includes(other, history) for other in computed):
            best = max(best, (epsilon(history, delta, accountant), history))
            computed.append(history)
    return best


def _includes(history: History, other: History) -> bool:
    """Whether every step of ``other`` can be matched with a step of ``history`` of the same noise and at least the same rate."""

    def count_steps(entries: History, noise: float, rate: float) -> int:
        return sum(steps for its_noise, its_rate, steps in entries if its_noise == noise and its_rate >= rate)

    return all(count_steps(history, noise, rate) >= count_steps(other, noise, rate) for noise, rate, _ in other)


def epsilon_replace_one(history: Sequence[Spending], delta: float) -> float:
    """Epsilon at ``delta`` under replace-one adjacency instead of zero-out, by Renyi DP.

    This follows from the triangle inequality over the zeroed-out sample (Mironov 2017, proposition 11 with p = q = 2):
    ``D_a(P || R) <= (a - 1/2) / (a - 1) D_2a(P || Q) + D_(2a - 1)(Q || R)``.
    """
    if not history:
        return 0.0
    at, doubled = _rdp(history, _WHOLE), np.array(_WHOLE[1:], dtype=np.float64)
    a = doubled / 2
    return float(_converted((a - 0.5) / (a - 1) * at[1:] + at[:-1], a.tolist(), delta))


def noise_for(target: float, delta: float, plans: Iterable[Plan], accountant: Accountant, before: History = ()) -> float:
    """The smallest noise for which no plan spends more than ``target``, to within 0.01 in epsilon.

    The search starts with the most expensive plan alone, and adds plans that then spend more.

    Args:
        before: what each client of a plan has spent already.

    Raises:
        UsageError: there is no such noise.
    """
    by_clients: dict[int, list[Plan]] = {}
    for plan in plans:
        by_clients.setdefault(len(plan) if before else 0, []).append(plan)
    candidates = [(plan, before * clients) for clients, group in by_clients.items() for plan in _most_expensive(group)]
    if not candidates:
        raise UsageError("no client trains in this run, so there is nothing to find noise for; leave target_epsilon out")
    tried = [max(candidates, key=lambda candidate: _cost(candidate[0]))]
    noise = _guessed_noise(target, delta, tried[0][0])
    while True:
        noise = _least_noise(target, delta, tried, accountant, noise)
        histories = {history_of(noise, *candidate): candidate for candidate in candidates}
        spent, history = largest_epsilon(histories, delta, accountant)
        if spent <= target:
            return noise
        worst = histories[history]
        tried = candidates if worst in tried else [*tried, worst]


def _most_expensive(plans: Iterable[Plan]) -> list[Plan]:
    """The distinct plans that spend anything, without plans of one rate that are included in another plan of one rate."""
    distinct = {tuple((rate, steps) for _, rate, steps in history_of(0.0, plan)) for plan in plans}
    kept, most = [], 0
    for plan in sorted(distinct - {()}, reverse=True):  # plans of one rate: the highest rate first
        if len(plan) > 1:
            kept.append(plan)
        elif plan[0][1] > most:
            kept.append(plan)
            most = plan[0][1]
    return kept


def _cost(plan: Plan) -> float:
    return sum(steps * rate**2 for rate, steps in plan)


def _guessed_noise(target: float, delta: float, plan: Plan) -> float:
    """An approximation of the noise for an epsilon, by the central limit theorem for Gaussian DP (Bu et al. 2020).

    The plan is about mu-GDP with ``mu^2 = sum(steps rate^2) (exp(1 / noise^2) - 1)``, and spends about ``mu^2 / 2 + mu tail``.
    """
    tail = math.sqrt(2 * math.log(1 / delta))
    mu = math.sqrt(tail**2 + 2 * target) - tail
    return 1 / math.sqrt(math.log1p(mu**2 / _cost(plan)))


def _least_noise(
    target: float, delta: float, plans: Sequence[tuple[Plan, History]], accountant: Accountant, start: float
) -> float:
    """Find the noise by Brent's method, starting near it; log(epsilon) is nearly linear in log(noise).

    Each plan comes with what was spent before it.

    Few evaluations are needed, since each takes up to seconds, and longer for less noise.
    """
    from scipy.optimize import brentq

    aim = max(target - _TOLERANCE / 2, target / 2)
    enough: list[float] = []

    def excess(log_noise: float) -> float:
        """log(epsilon / aim); 0 within the tolerance."""
        noise = math.exp(log_noise)
        spends = largest_epsilon((history_of(noise, *plan) for plan in plans), delta, accountant)[0]
        if spends <= target:
            enough.append(noise)
            if target - spends <= _TOLERANCE:
                return 0.0
        return math.log(min(max(spends / aim, 0.01), 100.0))

    here = math.log(start)
    over = excess(here)
    while over:
        # Epsilon falls at least as fast as 1 / noise, so that this step reaches the other side of the root.
        there = here + min(max(over, -math.log(2)), math.log(4))
        if there > math.log(_MOST_NOISE):
            raise UsageError(f"no noise was found for target_epsilon {target:g} at delta {delta:g}")
        beyond = excess(there)
        if over * beyond <= 0:
            brentq(excess, here, there, xtol=1e-6)
            break
        here, over = there, beyond
    return min(enough)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block without warnings about extreme orders and log(0) at rate 1, where the bounds still hold."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
