"""The rows of an embedding that a client used: in a gradient all others are zero, in a weight change they only decayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.gradients.multistep import response

FALSE_ALARMS = 0.1
"""Expected number of rows that noise alone raises above the limit."""
PARALLEL = 0.1
"""A row counts as parallel to its initial weights if the residual is below this share of its norm."""
MIN_PARALLEL = 3
"""Smallest number of rows parallel to their initial weights that shows the effect of weight decay."""
ROUNDING = 4.0
"""Largest rounding error of a decayed row, as a multiple of the typical one."""
NEAR = 2.0**-14
"""Relative distance up to which numbers count as equal in 16 bits."""
ON_GRID = 0.98
"""Smallest share of the entries that must lie on a grid."""
FLOAT32 = 2.0**-24
"""Largest relative error of one rounding."""
ASSUMED_STEPS = 64
"""Number of roundings of a row, if the number of steps is not known."""
INEXACT = 1e-3
"""Largest relative error of the computed decay of a row."""


@dataclass(frozen=True)
class Rows:
    """The used rows of an embedding ``(V, d)``.

    Attributes:
        used: ``(V,)``.
        norms: ``(V,)``, of the gradient, or of the change without weight decay.
        exact: whether ``used`` is certain, except for words whose gradient was lost to rounding.
        how: how the rows were found, as a clause.
    """

    used: Tensor
    norms: Tensor
    exact: bool
    how: str


def used_rows(observation: Observation, name: str) -> Rows:
    """The used rows of the embedding whose weight ``name`` was sent.

    Zero rows are unused. If there are none, a known schedule gives the effect of weight decay on an unused row; without one, the
    unused rows are those that changed by a common factor. Rounding in transit is recognised and taken into account. Otherwise
    most rows are assumed to be unused, and their median norm shows decay and noise.
    """
    rows = observation.shared[name].double()
    start = observation.weights.get(name) if observation.kind == "change" else None
    norms = rows.norm(dim=1)
    error = observation.altered.variance.get(name, 0.0)
    if start is not None:
        start = start.double()
        if error and (rounded := _half_precision(rows, start, observation, name) or _quantised(rows, start, observation, name)):
            return rounded
    unused = norms == 0
    if start is not None:
        unused &= start.norm(dim=1) > 0  # a row of zeros does not decay
    if bool(unused.any()):
        if name in observation.altered.kept:
            return Rows(norms > 0, norms, False, "rows of which something was sent; words whose rows are small may be missing")
        return Rows(norms > 0, norms, True, "the other rows are zero")
    if start is not None:
        ways = [partial(_beyond_decay, rows, start, observation, name), partial(_undecayed, rows, start)]
        for way in ways if observation.schedule else reversed(ways):  # without a schedule, computing the decay is slower
            if (rounded := way()) is not None:
                return rounded
    # Under noise of one variance the norms of unused rows lie close to their median.
    middle = norms.median()
    spread = (norms - middle).abs().median() / NormalDist().inv_cdf(0.75)
    limit = middle + NormalDist().inv_cdf(1 - FALSE_ALARMS / len(norms)) * spread
    return Rows(norms > limit, norms, False, "an estimate: every row changed, and these stand out from the noise")


def why_estimated(observation: Observation, name: str) -> str | None:
    """Why the used rows are an estimate although no noise or pruning was declared, as a clause; ``None`` if they are exact."""
    altered = observation.altered
    if name not in observation.shared or name in altered.kept or altered.variance.get(name, 0.0):
        return None
    if used_rows(observation, name).exact:
        return None
    return "the rows of unused words changed, too, by the client's own steps, so that the words found are an estimate"


def _decay(observation: Observation, name: str, start: Tensor) -> tuple[Tensor, int]:
    """The change ``(V, d)`` of unused rows by weight decay, 0 if unknown, and the number of steps."""
    if observation.schedule is None:
        return torch.zeros_like(start) if observation.zero_gradient_change is None else observation.zero_gradient_change(
            start
        ), ASSUMED_STEPS
    schedule = observation.schedule.of(name)
    return response(schedule, schedule.weight_decay).shrink * start, schedule.steps


def _beyond_decay(rows: Tensor, start: Tensor, observation: Observation, name: str) -> Rows | None:
    """The rows of a change ``(V, d)`` that changed by more than the known weight decay explains.

    ``None`` if all rows did, or if no decay is known.
    """
    decayed, steps = _decay(observation, name, start)
    left = (rows - decayed).norm(dim=1)
    # Each step rounds every entry once, up or down.
    limit = ROUNDING * FLOAT32 * math.sqrt(steps) * start.norm(dim=1) + INEXACT * decayed.norm(dim=1)
    if bool((left > limit).all()) or not bool(decayed.any()):
        return None
    return Rows(left > limit, left, True, "the other rows only decayed, as the schedule says")


def _undecayed(rows: Tensor, start: Tensor) -> Rows | None:
    """The used rows of a change ``(V, d)`` in which all others are ``start`` times a common factor.

    ``None`` if there are too few of these others.

    The gradient of a used row is hardly ever parallel to its weights.
    """
    length = start.norm(dim=1).clamp_min(1e-30)
    factors = (rows * start).sum(1) / length.square()
    away = (rows - factors[:, None] * start).norm(dim=1) / rows.norm(dim=1).clamp_min(1e-30)
    parallel = (away < PARALLEL) & rows.any(1)
    if int(parallel.sum()) < MIN_PARALLEL:
        return None
    factor = factors[parallel].median()
    left = (rows - factor * start).norm(dim=1)
    share = left / length
    used = (share > ROUNDING * share[parallel].median()) & (left > 0)
    return Rows(used, left, True, f"the other rows only decayed, by {-float(factor):.2g}")


def _half_precision(rows: Tensor, start: Tensor, observation: Observation, name: str) -> Rows | None:
    """The used rows of a change ``(V, d)`` of weights sent in 16 bits.

    The other rows are what weight decay and rounding to 16 bits alone give. ``None`` if the weights have more than 16 bits.
    """
    sent = (start + rows).float()
    near = sent.abs() * NEAR + 1e-9
    for dtype in (torch.bfloat16, torch.float16):  # nearly all bfloat16 numbers are also float16 numbers
        if float(((sent - sent.to(dtype).float()).abs() < near).float().mean()) > ON_GRID:
            decayed, _ = _decay(observation, name, start)
            other = (sent - (start + decayed).float().to(dtype).float()).abs() > near
            # Weights near the middle of two numbers may be rounded to the other one.
            used = other.sum(1) > max(1.0, (1 - ON_GRID) * other.shape[1])
            how = f"the other rows are what weight decay and rounding to {str(dtype)[6:]} alone give"
            return Rows(used, (rows - decayed).norm(dim=1), True, how)
    return None


def _quantised(rows: Tensor, start: Tensor, observation: Observation, name: str) -> Rows | None:
    """The used rows of a quantised change ``(V, d)``; ``None`` if its entries are not multiples of one number."""
    step = math.sqrt(6 * observation.altered.variance[name])
    codes = rows / step
    if float(((codes - codes.round()).abs() < 0.1).float().mean()) <= ON_GRID:
        return None
    decayed, _ = _decay(observation, name, start)
    far = ((rows - decayed).abs() > 1.1 * step).any(1)
    expected = decayed.abs().sum(1) / step  # number of entries of an unused row that are not rounded to 0
    used = far | (codes.round().ne(0).sum(1) > expected + 4 * expected.sqrt() + 3)
    return Rows(used, (rows - decayed).norm(dim=1), True, "the other rows changed by no more than decay and rounding may do")
