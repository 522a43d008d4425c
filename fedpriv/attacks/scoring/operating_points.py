"""How well scores separate members from non-members: the ROC, its area, and true-positive rates at low false-positive rates.

Guesses have an area of 0.5, and a true-positive rate equal to the false-positive rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import nhypergeom, norm
from sklearn.metrics import roc_auc_score, roc_curve

from fedpriv.attacks.scoring.scores import Rate, wilson

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FALSE_ALARMS = (0.01, 0.001)
"""False-positive rates at which an attack is judged (Carlini et al. 2022, sec. III)."""


@dataclass(frozen=True)
class Area:
    """The area under the ROC, which is the probability that a member scores higher than a non-member, and its interval."""

    value: float
    low: float
    high: float

    @property
    def is_above_chance(self) -> bool:
        """Whether the interval lies above 0.5."""
        return self.low > 0.5


@dataclass(frozen=True)
class Point:
    """The ROC at the lowest threshold whose false-positive rate is within the allowed one.

    Attributes:
        true_positives: the true-positive rate; members are independent trials, as the threshold depends on non-members only.
        false_alarms: the false-positive rate; its interval shows the resolution of so many non-members.
        by_chance: the exact probability that guessing finds as many members: in a random order, the number of members above the
            first non-member that exceeds the limit has a negative hypergeometric distribution.
    """

    true_positives: Rate
    false_alarms: Rate
    by_chance: float


@dataclass(frozen=True)
class OperatingPoints:
    """The ROC of an attack, its area, and its points at low false-positive rates.

    Attributes:
        roc: (false-positive rate, true-positive rate), from (0, 0) to (1, 1).
        at: the point for each allowed false-positive rate; ``None`` where there are too few non-members for it.
        notes: a sentence for each ``None``.
    """

    members: int
    non_members: int
    auc: Area
    roc: tuple[tuple[float, float], ...]
    at: dict[float, Point | None]
    notes: tuple[str, ...]


def operating_points(scores: Array, members: Mask) -> OperatingPoints:
    """The operating points of scores ``(n,)``, higher for likelier members.

    Args:
        members: which samples are members ``(n,)``.

    Raises:
        ValueError: there is no member, no non-member, or a NaN among the scores.
    """
    inside, outside = int(members.sum()), int((~members).sum())
    if not inside or not outside or np.isnan(scores).any():
        raise ValueError(f"nothing to tell apart: {inside} members, {outside} non-members, {int(np.isnan(scores).sum())} NaN")
    bounded = np.clip(scores, -np.finfo(np.float64).max, np.finfo(np.float64).max)
    false, true, _ = roc_curve(members, bounded)
    at = {rate: _point(bounded, members, rate) for rate in FALSE_ALARMS}
    notes = tuple(
        f"{outside} non-members do not resolve a false-positive rate of {rate:.1%}, which needs {math.ceil(1 / rate)}"
        for rate, point in at.items()
        if point is None
    )
    roc = tuple((float(x), float(y)) for x, y in zip(false, true, strict=True))
    return OperatingPoints(inside, outside, area(bounded, members), roc, at, notes)


def area(scores: Array, members: Mask, confidence: float = 0.95) -> Area:
    """The area (ties count half) with Newcombe's interval (Stat. Med. 25, 2006, part 2, method 5).

    It contains every true area from which the observed one is less than 1.96 (at 95 %) standard errors away, with that true
    area's standard error (Hanley & McNeil 1982), as Wilson's interval does for a rate. DeLong's interval and the bootstrap have
    no width where few samples are separated completely.
    """
    return interval(float(roc_auc_score(members, scores)), int(members.sum()), int((~members).sum()), confidence)


def interval(value: float, n: int, m: int, confidence: float) -> Area:
    """The observed area of ``n`` members and ``m`` others, with the interval of :func:`area`."""
    z, extra = float(norm.isf((1 - confidence) / 2)), (n + m) / 2 - 1

    def distance(true: float) -> float:
        spread = true * (1 - true) * (1 + extra * ((1 - true) / (2 - true) + true / (1 + true))) / (n * m)
        return (true - value) ** 2 - z**2 * spread

    # At 0 and 1 the standard error is 0, so the search begins next to them.
    low = 0.0 if value == 0 else brentq(distance, 0.0, min(value, 1 - 1e-9))
    high = 1.0 if value == 1 else brentq(distance, max(value, 1e-9), 1.0)
    return Area(value, float(low), float(high))


def can_tell(members: int, others: int, confidence: float = 0.95) -> bool:
    """Whether an attack that separates so many members and others completely would have an interval above 0.5."""
    return interval(1.0, members, others, confidence).low > 0.5


def _point(scores: Array, members: Mask, rate: float) -> Point | None:
    outside = np.sort(scores[~members])[::-1]
    allowed = math.floor(rate * len(outside) + 1e-9)
    if not allowed:
        return None
    # Above the first non-member that exceeds the limit; ties with it do not count as found.
    above = scores > outside[allowed]
    inside, hits = int(members.sum()), int(above[members].sum())
    by_chance = float(nhypergeom.sf(hits - 1, inside + len(outside), inside, allowed + 1))
    return Point(wilson(hits, inside), wilson(int(above[~members].sum()), len(outside)), by_chance)
