"""The decision among audited runs: which are beaten by none, and which is the most accurate that meets a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.audit.conditions import Condition
from fedpriv.audit.judge import members
from fedpriv.audit.judge.measures import MEASURES, OpenRate, known_recovered, most_open, most_recovered
from fedpriv.audit.results import AuditedRun
from fedpriv.experiments.claims import mean_interval


@dataclass(frozen=True)
class Trade:
    """An audited run: what it costs, and what it leaks.

    Attributes:
        accuracy: mean over the clients, in [0, 1]; ``interval``: 95 % of it over the clients (Student's t, clipped to [0, 1]).
        recovered: the largest share of samples that an attack recovered, from a message or in the easiest case; ``None``: it is
            not known, as none was and not all could be mounted. ``recovered_interval``: 95 % (Wilson).
        leakage: every measure of :mod:`fedpriv.audit.judge.measures`.
        bytes: sent in both directions, in the whole run.
        unmet: the conditions of the target that do not hold of it, or of which it is not known.
        recovered_open: the largest upper end of the intervals (95 %) of all attacks that count, not only of the one that
            recovered most; ``recovered_open_by``: the rate it is of (:func:`fedpriv.audit.judge.measures.most_open`).
        membership_open: the same of membership attacks, an AUC (:func:`fedpriv.audit.judge.members.largest_open`).
        membership_not_tried: why membership attacks were not tried, by attack.
    """

    label: str
    method: str
    defence: str
    seed: int
    accuracy: float | None
    interval: tuple[float, float] | None
    at_chance: bool
    recovered: float | None
    recovered_interval: tuple[float, float] | None
    leakage: Mapping[str, float | None]
    bytes: int
    words: str
    unmet: tuple[str, ...]
    recovered_open: float | None = None
    recovered_open_by: Mapping[str, Any] | None = None
    membership_open: float | None = None
    membership_not_tried: Mapping[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether it holds the target, with a model that is better than guessing; without a target, only the latter."""
        return not self.unmet and not self.at_chance and self.accuracy is not None


def trade(
    label: str, method: str, defence: str, run: AuditedRun, accuracies: Sequence[float], target: Sequence[Condition]
) -> Trade:
    """An audited run as a trade.

    Args:
        accuracies: of its clients.
    """
    leakage = {name: measure.value(run) for name, measure in MEASURES.items()}
    recovered, rate, widest = known_recovered(run), most_recovered(run), most_open(run)
    assert run.cost.bytes_down is not None, "a run counts its bytes"
    return Trade(
        label, method, defence, run.seed,
        accuracy=run.cost.accuracy,
        interval=clipped(mean_interval(accuracies)) if len(accuracies) > 1 else None,
        at_chance=run.cost.at_chance,
        recovered=recovered,
        recovered_interval=None if rate is None or recovered is None else (rate.low, rate.high),
        leakage={name: None if value is None or math.isinf(value) else value for name, value in leakage.items()},
        bytes=run.cost.bytes_up + run.cost.bytes_down,
        words=run.concluded.words,
        unmet=tuple(str(one) for one in target if not one.holds(run)),
        recovered_open=None if widest is None or recovered is None else widest.rate.high,
        recovered_open_by=None if widest is None else _rate(widest),
        membership_open=members.largest_open(run.membership),
        membership_not_tried=members.not_run(run.membership),
    )  # fmt: skip


def _rate(one: OpenRate) -> dict[str, Any]:
    return {"attacker": one.attack, "kind": one.kind, "successes": one.rate.successes, "n": one.rate.n}


def clipped(interval: Sequence[float]) -> tuple[float, float]:
    """An interval of a share without what lies outside 0 to 1, where Student's t may reach."""
    low, high = (min(1.0, max(0.0, end)) for end in interval)
    return low, high


def pareto_optimal(trades: Sequence[Trade]) -> list[Trade]:
    """Those of which no other is at least as accurate, as tight and as small, and better in one. Without those at chance."""
    known = [one for one in trades if one.accuracy is not None and one.recovered is not None and not one.at_chance]
    return [one for one in known if not any(_beats(other, one) for other in known)]


def most_accurate(trades: Sequence[Trade]) -> Trade | None:
    """Of those that hold the target, the most accurate; among equals, that with the fewest bytes. ``None``: none holds."""
    return max((one for one in trades if one.holds), key=_merit, default=None)


def nearest(trades: Sequence[Trade]) -> Trade | None:
    """Of those better than guessing, that which misses the fewest conditions; among equals, the most accurate."""
    useful = [one for one in trades if one.accuracy is not None and not one.at_chance]
    return max(useful, key=lambda one: (-len(one.unmet), *_merit(one)), default=None)


def _merit(one: Trade) -> tuple[float, float]:
    return (one.accuracy or 0.0, -float(one.bytes))


def _beats(one: Trade, other: Trade) -> bool:
    def of(trade: Trade) -> tuple[float, float, float]:
        return (trade.accuracy or 0.0, -(trade.recovered or 0.0), -float(trade.bytes))

    return one is not other and of(one) != of(other) and all(a >= b for a, b in zip(of(one), of(other), strict=True))
