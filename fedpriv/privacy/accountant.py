"""Epsilon of a history of Poisson-subsampled Gaussian mechanisms, and the noise for a wanted epsilon. Opacus computes both.

A history is a sequence of (noise, rate, steps): so many times, everybody is drawn with probability ``rate``,
independently, and a sum with sensitivity C gets N(0, (noise C)^2). It is (epsilon, delta)-DP for adding or removing one of
those who are drawn. RDP (Mironov et al. 2019, conversion of Balle et al. 2020) is an upper bound; PRV (Gopi et al. 2021)
composes numerically and is tighter by what RDP gives away.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

import numpy as np

from fedpriv.errors import UsageError

Accountant = Literal["rdp", "prv"]
Spending = tuple[float, float, int]
"""(noise, rate, steps)"""

_TABLE = 100.0  # PRV's table grows with epsilon: beyond this it takes gigabytes, and no such guarantee is worth them


def _orders() -> list[float]:
    """Opacus' Renyi orders, and higher ones, which small epsilons need."""
    from opacus.accountants import RDPAccountant  # type: ignore[import-untyped]

    return [*RDPAccountant.DEFAULT_ALPHAS, 64, 80, 96, 128, 192, 256, 512]


@lru_cache(maxsize=4096)
def _step_rdp(noise: float, rate: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """RDP of one step, per order."""
    from opacus.accountants.analysis import rdp  # type: ignore[import-untyped]

    return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=_orders()), dtype=np.float64)


def epsilon_rdp(history: Sequence[Spending], delta: float) -> float:
    """Epsilon at ``delta`` by Renyi DP; 0 for an empty history.

    What :class:`opacus.accountants.RDPAccountant` gives, with a step's part remembered: a ledger asks after every round.
    """
    from opacus.accountants.analysis import rdp

    if not history:
        return 0.0
    total = np.sum([steps * _step_rdp(noise, rate) for noise, rate, steps in history], axis=0)
    with _quiet():
        epsilon, _ = rdp.get_privacy_spent(orders=_orders(), rdp=total, delta=delta)
    return float(epsilon)


def epsilon_prv(history: Sequence[Spending], delta: float) -> float | None:
    """Epsilon at ``delta`` by privacy loss random variables (the upper end of the estimate).

    ``None`` where it cannot be computed: for epsilons of no use (over 100), and where Opacus' quadrature fails.
    """
    from opacus.accountants import PRVAccountant

    if not history:
        return 0.0
    if epsilon_rdp(history, delta) > _TABLE:
        return None
    engine = PRVAccountant()
    engine.history = list(history)
    try:
        with _quiet():
            epsilon = float(engine.get_epsilon(delta))
    except (RuntimeError, ValueError, ArithmeticError, MemoryError):
        return None
    return epsilon if np.isfinite(epsilon) else None


def epsilon(history: Sequence[Spending], delta: float, accountant: Accountant) -> float:
    """Epsilon at ``delta``. Where PRV cannot tell, RDP's bound."""
    tighter = epsilon_prv(history, delta) if accountant == "prv" else None
    return epsilon_rdp(history, delta) if tighter is None else tighter


def noise_for(target: float, delta: float, plans: Sequence[tuple[float, int]], accountant: Accountant) -> float:
    """The least noise with which no (rate, steps) of ``plans`` spends more than ``target``, to 0.01 in epsilon.

    Raises:
        UsageError: no noise does.
    """
    from opacus.accountants.utils import get_noise_multiplier  # type: ignore[import-untyped]

    hardest = [
        plan
        for plan in set(plans)
        # A plan without steps spends nothing at any noise: Opacus would look for the least one for ever.
        if plan[1] and not any(other != plan and other[0] >= plan[0] and other[1] >= plan[1] for other in plans)
    ]
    if not hardest:
        raise UsageError("nobody trains in this run, so no noise spends target_epsilon")
    if target > _TABLE / 2:  # where the ledger would count by RDP, see epsilon_prv
        accountant = "rdp"
    options = {"alphas": _orders()} if accountant == "rdp" else {}
    found = 0.0
    for rate, steps in hardest:
        try:
            with _quiet():
                noise = get_noise_multiplier(
                    target_epsilon=target, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant, **options
                )
        except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
            hint = "; privacy.accountant: rdp is sturdier" if accountant == "prv" else ""
            raise UsageError(f"no noise was found for target_epsilon {target:g} at delta {delta:g}: {error}{hint}") from None
        found = max(found, float(noise))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice that an extreme order was the best, and log(0) at rate 1: both bounds stand."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
