"""Which rows of an embedding a client used: in one gradient the others are zero, in a change of the weights at most decayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from attacks.core.observation import Observation, Schedule

FALSE_ALARMS = 0.1
"""Rows that noise alone is allowed to raise, in expectation."""
PARALLEL = 0.1
"""Rows count as parallel to their first weights if the median of what is left is below this share of their length."""
ROUNDING = 4.0
"""What rounding leaves of a row's decay, as a share of the row, is less than so many times what it leaves as a rule."""
FLOAT32 = 2.0**-24
"""Largest relative error of rounding a number once."""


@dataclass(frozen=True)
class Rows:
    """Of an embedding ``(V, d)``.

    Attributes:
        used: ``(V,)``.
        norms: ``(V,)``, of the gradient or change without weight decay.
        exact: whether ``used`` is certain, but for words whose gradient rounding swallowed.
        how: a sentence about where it comes from.
    """

    used: Tensor
    norms: Tensor
    exact: bool
    how: str


def used_rows(observation: Observation, name: str) -> Rows:
    """Those of the embedding whose weight is ``name``, which was sent.

    Where none is zero, a known schedule says what decay alone does to a row. Without it, or where every row moved by more, most
    are assumed to be unused: their median then tells decay and noise.
    """
    rows = observation.shared[name].double()
    start = observation.weights.get(name) if observation.kind == "change" else None
    norms = rows.norm(dim=1)
    idle = norms == 0
    if start is not None:
        start = start.double()
        idle &= start.norm(dim=1) > 0  # a row of zeros does not decay, and says nothing
    if bool(idle.any()):
        if name in observation.altered.kept:
            return Rows(norms > 0, norms, False, "rows of which something was sent; words whose rows are small may be missing")
        return Rows(norms > 0, norms, True, "the other rows are zero")
    if start is not None and (found := _beyond_decay(rows, start, observation.schedule) or _undecayed(rows, start)):
        return found
    # Noise of one strength: the lengths of so many rows lie closely around their median.
    middle = norms.median()
    spread = (norms - middle).abs().median() / NormalDist().inv_cdf(0.75)
    limit = middle + NormalDist().inv_cdf(1 - FALSE_ALARMS / len(norms)) * spread
    return Rows(norms > limit, norms, False, "an estimate: every row moved, and these stand out of the noise")


def _beyond_decay(rows: Tensor, start: Tensor, schedule: Schedule | None) -> Rows | None:
    """Where some rows of the change ``(V, d)`` did what the schedule's decay does to a weight without gradient, and no more."""
    if schedule is None or schedule.weight_decay == 0:
        return None
    weight, velocity = 1.0, 0.0
    for _ in range(schedule.steps):
        velocity = schedule.momentum * velocity + schedule.weight_decay * weight
        weight -= schedule.lr * velocity
    left = (rows - (weight - 1) * start).norm(dim=1)
    # Each step rounds every entry once, to this side or that.
    used = left > ROUNDING * FLOAT32 * math.sqrt(schedule.steps) * start.norm(dim=1)
    if bool(used.all()):
        return None
    return Rows(used, left, True, f"the other rows only decayed, as {schedule.steps} steps of the schedule say")


def _undecayed(rows: Tensor, start: Tensor) -> Rows | None:
    """Where most rows of the change ``(V, d)`` are parallel to ``start`` with one factor."""
    length = start.norm(dim=1).clamp_min(1e-30)
    factor = ((rows * start).sum(1) / length.square()).median()
    left = (rows - factor * start).norm(dim=1)
    if not float((left / rows.norm(dim=1).clamp_min(1e-30)).median()) < PARALLEL:
        return None
    share = left / length
    used = (share > ROUNDING * share.median()) & (left > 0)
    return Rows(used, left, True, f"the other rows only decayed, by {-float(factor):.2g}")
