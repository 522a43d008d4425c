"""Which rows of an embedding a client used: in a gradient the others are zero, in a weight change they have at most decayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from fedpriv.attacks.core.observation import Observation, Schedule

FALSE_ALARMS = 0.1
"""Expected number of rows that noise alone raises above the limit."""
PARALLEL = 0.1
"""Rows count as parallel to their initial weights if the median residual is below this share of their norm."""
ROUNDING = 4.0
"""The rounding error of a row's decay, relative to the row, is less than so many times its typical size."""
FLOAT32 = 2.0**-24
"""Largest relative error of one rounding."""


@dataclass(frozen=True)
class Rows:
    """The used rows of an embedding ``(V, d)``.

    Attributes:
        used: ``(V,)``.
        norms: ``(V,)``, of the gradient or change without weight decay.
        exact: whether ``used`` is certain, except for words whose gradient was lost to rounding.
        how: how the rows were found, in a sentence.
    """

    used: Tensor
    norms: Tensor
    exact: bool
    how: str


def used_rows(observation: Observation, name: str) -> Rows:
    """The used rows of the embedding whose weight is ``name``, which was sent.

    Where no row is zero, a known schedule gives the effect of weight decay on an unused row. Without a schedule, or where every
    row changed by more, most rows are assumed to be unused, and their median shows decay and noise.
    """
    rows = observation.shared[name].double()
    start = observation.weights.get(name) if observation.kind == "change" else None
    norms = rows.norm(dim=1)
    idle = norms == 0
    if start is not None:
        start = start.double()
        idle &= start.norm(dim=1) > 0  # a row of zeros does not decay
    if bool(idle.any()):
        if name in observation.altered.kept:
            return Rows(norms > 0, norms, False, "rows of which something was sent; words whose rows are small may be missing")
        return Rows(norms > 0, norms, True, "the other rows are zero")
    if start is not None and (
        found := _beyond_decay(rows, start, observation.schedule and observation.schedule.of(name)) or _undecayed(rows, start)
    ):
        return found
    # Under noise of one variance the norms of unused rows lie close to their median.
    middle = norms.median()
    spread = (norms - middle).abs().median() / NormalDist().inv_cdf(0.75)
    limit = middle + NormalDist().inv_cdf(1 - FALSE_ALARMS / len(norms)) * spread
    return Rows(norms > limit, norms, False, "an estimate: every row changed, and these stand out from the noise")


def _beyond_decay(rows: Tensor, start: Tensor, schedule: Schedule | None) -> Rows | None:
    """The used rows of the change ``(V, d)``, where some others changed by no more than the schedule's weight decay."""
    if schedule is None or schedule.weight_decay == 0:
        return None
    weight, velocity = 1.0, 0.0
    for _ in range(schedule.steps):
        velocity = schedule.momentum * velocity + schedule.weight_decay * weight
        weight -= schedule.lr * velocity
    left = (rows - (weight - 1) * start).norm(dim=1)
    # Each step rounds every entry once, up or down.
    used = left > ROUNDING * FLOAT32 * math.sqrt(schedule.steps) * start.norm(dim=1)
    if bool(used.all()):
        return None
    return Rows(used, left, True, f"the other rows only decayed, as {schedule.steps} steps of the schedule say")


def _undecayed(rows: Tensor, start: Tensor) -> Rows | None:
    """The used rows of the change ``(V, d)``, where most rows are ``start`` times a common factor."""
    length = start.norm(dim=1).clamp_min(1e-30)
    factor = ((rows * start).sum(1) / length.square()).median()
    left = (rows - factor * start).norm(dim=1)
    if not float((left / rows.norm(dim=1).clamp_min(1e-30)).median()) < PARALLEL:
        return None
    share = left / length
    used = (share > ROUNDING * share.median()) & (left > 0)
    return Rows(used, left, True, f"the other rows only decayed, by {-float(factor):.2g}")
