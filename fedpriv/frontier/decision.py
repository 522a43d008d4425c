"""The decision among audited runs: which ones no other beats, and which is the most accurate that meets a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.conditions import Condition, conditions
from fedpriv.audit.judge import members
from fedpriv.audit.judge.measures import MEASURES, OpenRate, known_recovered, most_open, most_recovered
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.errors import UsageError
from fedpriv.evaluation.intervals import mean_interval
from fedpriv.scores.catalogue import ACCURACY, SCORES, Score, score_named


def _read_condition(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        (condition,) = conditions(value)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return condition


StoredCondition = Annotated[Condition, BeforeValidator(_read_condition), PlainSerializer(str)]
"""A condition, in JSON as it is typed: ``recovered<=0.05``."""


@dataclass(frozen=True)
class Trade:
    """An audited run: what it costs, and what it leaks.

    Attributes:
        label: names the method with its defence.
        accuracy: mean over the clients, in [0, 1]; ``accuracy_interval``: 95 % of it over the clients (Student's t).
        metric: the score that the run is ranked by (``eval.metric``); ``score`` and ``score_interval``: if it is not accuracy,
            its value and interval.
        at_chance: whether the model is no better than guessing.
        recovered: the largest rate of samples that an attack recovered, from a message or in the easiest case; ``None``: not
            known, as nothing was recovered and not every attack could be mounted.
        most_open: of all conclusive attacks, the rate whose interval reaches highest; ``None`` where ``recovered`` is.
        leakage: every measure of :mod:`fedpriv.audit.judge.measures`; ``None``: not known, or infinite.
        membership_open: the largest upper end of the intervals of membership attacks, an AUC; ``None``: none was run.
        membership_not_tried: why membership attacks were not tried, by attack.
        bytes: sent in both directions, in the whole run.
        answer: the audit's answer in a few words.
        unmet: the conditions of the target that it does not meet, or may not meet, as it is not known.
    """

    label: str
    method: str
    defence: str
    seed: int
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None
    at_chance: bool
    recovered: Rate | None
    most_open: OpenRate | None
    leakage: Mapping[str, float | None]
    bytes: int
    answer: str
    unmet: tuple[StoredCondition, ...]
    metric: str = "accuracy"
    score: float | None = None
    score_interval: tuple[float, float] | None = None
    membership_open: float | None = None
    membership_not_tried: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.metric not in SCORES:
            raise ValueError(f"{self.metric!r} is no score")

    @property
    def ranked(self) -> float | None:
        """The score that the run is ranked by."""
        return self.accuracy if self.metric == "accuracy" else self.score

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of :attr:`ranked`."""
        return self.accuracy_interval if self.metric == "accuracy" else self.score_interval

    @property
    def merit(self) -> float:
        """:attr:`ranked` with a sign by which more is better; minus infinity: not measured."""
        return -math.inf if self.ranked is None else score_named(self.metric).merit(self.ranked)

    @property
    def holds(self) -> bool:
        """Whether it meets the target with a model that is better than guessing; without a target, only the latter."""
        return not self.unmet and not self.at_chance and self.ranked is not None


def trade(
    label: str, method: str, defence: str, run: AuditedRun, accuracies: Sequence[float], target: Sequence[Condition],
    scores: Sequence[float] = (),
) -> Trade:  # fmt: skip
    """An audited run as a trade.

    Args:
        accuracies: of its clients.
        scores: of its clients, if it is ranked by another score than the accuracy.
    """
    score = score_named(run.cost.metric)
    is_known = known_recovered(run) is not None
    leakage = {name: measure.value(run) for name, measure in MEASURES.items()}
    assert run.cost.bytes_down is not None, "a run counts its bytes"
    return Trade(
        label, method, defence, run.seed,
        accuracy=run.cost.accuracy,
        accuracy_interval=_within(mean_interval(accuracies), ACCURACY) if len(accuracies) > 1 else None,
        at_chance=run.cost.at_chance,
        recovered=most_recovered(run) if is_known else None,
        most_open=most_open(run) if is_known else None,
        leakage={name: None if value is None or math.isinf(value) else value for name, value in leakage.items()},
        bytes=run.cost.bytes_up + run.cost.bytes_down,
        answer=run.concluded.words,
        unmet=tuple(condition for condition in target if not condition.holds(run)),
        metric=score.name,
        score=run.cost.score,
        score_interval=_within(mean_interval(scores), score) if len(scores) > 1 else None,
        membership_open=members.largest_open(run.membership),
        membership_not_tried=members.not_run(run.membership),
    )  # fmt: skip


def _within(interval: tuple[float, float], score: Score) -> tuple[float, float]:
    """An interval without what lies outside a score's range, which Student's t may reach."""
    low, high = (min(score.high, max(score.low, end)) for end in interval)
    return low, high


def pareto_optimal(trades: Sequence[Trade]) -> list[Trade]:
    """The trades that no other beats: none is as accurate, as tight and as small, and better in one. Without those at chance."""
    known = [trade for trade in trades if trade.ranked is not None and trade.recovered is not None and not trade.at_chance]
    return [trade for trade in known if not any(_beats(other, trade) for other in known)]


def most_accurate(trades: Sequence[Trade]) -> Trade | None:
    """Of the trades that meet the target, the most accurate; among equals, the one with the fewest bytes. ``None``: none does."""
    return max((trade for trade in trades if trade.holds), key=_merit, default=None)


def nearest(trades: Sequence[Trade]) -> Trade | None:
    """Of those better than guessing, the one that misses the fewest conditions; among equals, the most accurate."""
    useful = [trade for trade in trades if trade.ranked is not None and not trade.at_chance]
    return max(useful, key=lambda trade: (-len(trade.unmet), *_merit(trade)), default=None)


def _merit(trade: Trade) -> tuple[float, float]:
    return (trade.merit, -float(trade.bytes))


def _beats(first: Trade, other: Trade) -> bool:
    def merits(trade: Trade) -> tuple[float, float, float]:
        return (trade.merit, -trade.recovered.share if trade.recovered else 0.0, -float(trade.bytes))

    mine, its = merits(first), merits(other)
    return first is not other and mine != its and all(a >= b for a, b in zip(mine, its, strict=True))
