"""What membership attacks show: whether they tell members from others, by intervals that hold for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.scoring.operating_points import OperatingPoints, Point, can_tell
from fedpriv.audit.results import Interval, MembershipOutcome

LEVEL = 0.05
"""Significance level of results at low false-positive rates."""
FEW = "with so few members and others not even a perfect attack would be distinguished from guessing"


@dataclass(frozen=True)
class Separation:
    """A membership attack that was run, with its figures and the interval for all attacks at once."""

    outcome: MembershipOutcome
    points: OperatingPoints
    together: Interval

    @property
    def auc(self) -> float:
        """Area under the ROC."""
        return self.points.auc.value


@dataclass(frozen=True)
class LargestArea:
    """The largest area of a membership attack; ``reversed``: one less that of an attack that gives members the lower scores."""

    outcome: MembershipOutcome
    auc: float
    together: Interval
    reversed: bool


@dataclass(frozen=True)
class FewFalseAlarms:
    """Members found at a false-positive rate, more than guessing would find."""

    outcome: MembershipOutcome
    false_positive_rate: float
    point: Point


def ran(attacks: Sequence[MembershipOutcome]) -> Iterator[Separation]:
    """The attacks that were run."""
    for one in attacks:
        if one.points is not None and one.together is not None:
            yield Separation(one, one.points, one.together)


def best(attacks: Sequence[MembershipOutcome]) -> Separation | None:
    """The attack whose area is surely largest, by the interval that holds for all at once.

    On as many samples it is that of the largest area; a round with few samples may have a larger one by chance. ``None``: there
    is none.
    """
    return max(ran(attacks), key=lambda one: (one.together.low, one.auc), default=None)


def reversed_attack(attacks: Sequence[MembershipOutcome]) -> Separation | None:
    """The attack that surely gives members lower scores than others, by the interval that holds for all at once.

    Read in the opposite order, its scores reveal members. ``None``: there is none.
    """
    known = (one for one in ran(attacks) if one.together.high < 0.5)
    return min(known, key=lambda one: (one.together.high, one.auc), default=None)


def largest_area(attacks: Sequence[MembershipOutcome]) -> LargestArea | None:
    """The largest area, of scores as they are or, of an attack that surely orders members last, read in reverse."""
    most = max(ran(attacks), key=lambda one: one.auc, default=None)
    if most is None:
        return None
    turned = reversed_attack(attacks)
    if turned is None or most.auc >= 1 - turned.auc:
        return LargestArea(most.outcome, most.auc, most.together, reversed=False)
    span = Interval(1 - turned.together.high, 1 - turned.together.low, turned.together.of)
    return LargestArea(turned.outcome, 1 - turned.auc, span, reversed=True)


def tells(attacks: Sequence[MembershipOutcome]) -> bool:
    """Whether an attack tells members from others, over all thresholds or at a low false-positive rate."""
    most = best(attacks)
    either = most is not None and (most.together.low > 0.5 or reversed_attack(attacks) is not None)
    return either or few_false_alarms(attacks) is not None


def few_false_alarms(attacks: Sequence[MembershipOutcome]) -> FewFalseAlarms | None:
    """The members found at the false-positive rates of the table, if guessing would hardly find as many at any of them."""
    return min(_beyond_chance(attacks), key=lambda one: one.point.by_chance, default=None)


def _beyond_chance(attacks: Sequence[MembershipOutcome]) -> list[FewFalseAlarms]:
    """Where attacks found more members at a false-positive rate than guessing would at any that is looked at (Bonferroni)."""
    points = [
        FewFalseAlarms(one.outcome, rate, point)
        for one in ran(attacks)
        for rate, point in one.points.at.items()
        if point is not None
    ]
    return [one for one in points if one.point.by_chance * len(points) < LEVEL]


def status_of(one: MembershipOutcome, attacks: Sequence[MembershipOutcome], limit: Reason | None) -> Status:
    """The status of an attack that was run: it found members where its area is surely not that of guessing, or where it found
    more of them at a low false-positive rate than guessing would.

    Args:
        attacks: all of the run, it among them.
        limit: why its failure would be no evidence; ``None``: it would be.
    """
    assert one.together is not None, "it was not run"
    off = one.together.low > 0.5 or one.together.high < 0.5
    found = off or any(better.outcome == one for better in _beyond_chance(attacks))
    few = (Reason("too few samples", FEW),) if one.round in _rounds_of_few(attacks) else ()
    return Status.of(found, few if limit is None else (*few, limit))


def not_attacked(attacks: Sequence[MembershipOutcome]) -> list[int]:
    """The rounds in which membership was to be attacked, and no attack could be mounted."""
    return sorted({one.round for one in attacks} - {one.outcome.round for one in ran(attacks)})


def not_run(attacks: Sequence[MembershipOutcome]) -> dict[str, str]:
    """Why attacks were not run, by attack; with the round where the reason is not that of every round.

    Empty where no round could be attacked, which :attr:`AuditedRun.not_run` says.
    """
    rounds = {one.round for one in attacks if one.uses is not None}
    if not rounds:
        return {}
    latest = max(one.round for one in attacks)
    latest_first = sorted(attacks, key=lambda one: (one.round != latest, one.round))
    reasons = dict[str, dict[int, str]]()
    for one in latest_first:
        if one.uses is not None and not one.status.was_run:
            reasons.setdefault(one.attack, {})[one.round] = one.status.why
    shown = dict[str, str]()
    for name, of_rounds in reasons.items():
        if len(of_rounds) == len(rounds) and len(set(of_rounds.values())) == 1:
            shown[name] = next(iter(of_rounds.values()))
        else:
            shown |= {f"{name}, round {round}": reason for round, reason in of_rounds.items()}
    return shown | {f"{one.attack}, round {one.round}": one.status.why for one in latest_first if one.uses is None}


def too_few(attacks: Sequence[MembershipOutcome]) -> bool:
    """Whether in some round so few members and others were asked that not even a perfect attack could be distinguished from
    guessing."""
    return bool(_rounds_of_few(attacks))


def _rounds_of_few(attacks: Sequence[MembershipOutcome]) -> list[int]:
    some, asked = list(ran(attacks)), dict[int, set[tuple[int, int]]]()
    confidence = 1 - LEVEL / max(1, len(some))
    for one in some:
        asked.setdefault(one.outcome.round, set()).add((one.points.members, one.points.non_members))
    return [round for round, numbers in asked.items() if not any(can_tell(*one, confidence) for one in numbers)]


def largest_open(attacks: Sequence[MembershipOutcome]) -> float | None:
    """The largest area that attacks leave open, by the intervals that hold for all at once; ``None``: none was run.

    Of an attack that surely gives members the lower scores it is one less the lower end.
    """
    bounds = [one.together.high for one in ran(attacks)]
    if (turned := reversed_attack(attacks)) is not None:
        bounds.append(1 - turned.together.low)
    return max(bounds, default=None)
