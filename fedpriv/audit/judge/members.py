"""What membership attacks show: whether they separate members from others, by intervals that hold for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.scoring.operating_points import OperatingPoints, Point, can_tell
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval

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
class FewFalseAlarms:
    """Members identified at a low false-positive rate, more than by guessing."""

    outcome: MembershipOutcome
    false_positive_rate: float
    point: Point


def ran(attacks: Sequence[MembershipOutcome]) -> Iterator[Separation]:
    """The attacks that were run."""
    for attack in attacks:
        if attack.points is not None and attack.together is not None:
            yield Separation(attack, attack.points, attack.together)


def best(attacks: Sequence[MembershipOutcome]) -> Separation | None:
    """The attack whose simultaneous interval has the largest lower end; ``None``: none was run.

    Not the largest area, since a round with few samples may have one by chance; if all
    attacks have equally many samples, it is the same attack.
    """
    return max(ran(attacks), key=lambda attack: (attack.together.low, attack.auc), default=None)


def reversed_attack(attacks: Sequence[MembershipOutcome]) -> Separation | None:
    """The attack that significantly gives members lower scores than others: read in reverse, they reveal members."""
    below = (attack for attack in ran(attacks) if attack.together.high < 0.5)
    return min(below, key=lambda attack: (attack.together.high, attack.auc), default=None)


def largest_area(attacks: Sequence[MembershipOutcome]) -> tuple[float, Interval, bool] | None:
    """The largest area with its simultaneous interval, and whether it is that of a :func:`reversed_attack`, read in reverse."""
    most = max(ran(attacks), key=lambda attack: attack.auc, default=None)
    if most is None:
        return None
    turned = reversed_attack(attacks)
    if turned is None or most.auc >= 1 - turned.auc:
        return most.auc, most.together, False
    return 1 - turned.auc, Interval(1 - turned.together.high, 1 - turned.together.low, turned.together.of), True


def tells(attacks: Sequence[MembershipOutcome]) -> bool:
    """Whether an attack separates members from others, over all thresholds or at a low false-positive rate."""
    return any(_is_off(attack.together) for attack in ran(attacks)) or few_false_alarms(attacks) is not None


def _is_off(area: Interval) -> bool:
    """Whether an area is significantly not that of guessing."""
    return area.low > 0.5 or area.high < 0.5


def few_false_alarms(attacks: Sequence[MembershipOutcome]) -> FewFalseAlarms | None:
    """The members identified at a low false-positive rate that are least likely by guessing; ``None``: guessing explains all."""
    return min(_beyond_chance(attacks), key=lambda alarms: alarms.point.by_chance, default=None)


def _beyond_chance(attacks: Sequence[MembershipOutcome]) -> list[FewFalseAlarms]:
    """Where attacks identified more members at a false-positive rate than guessing, over all attacks and rates (Bonferroni)."""
    points = [
        FewFalseAlarms(attack.outcome, rate, point)
        for attack in ran(attacks)
        for rate, point in attack.points.at.items()
        if point is not None
    ]
    return [alarms for alarms in points if alarms.point.by_chance * len(points) < LEVEL]


def status_of(attack: MembershipOutcome, attacks: Sequence[MembershipOutcome], limit: Reason | None) -> Status:
    """The status of an attack that was run: it succeeded where its area is significantly not that of guessing, or where it
    identified more members at a low false-positive rate than guessing.

    Args:
        attacks: all attacks of the run, this one among them.
        limit: why its failure would be no evidence; ``None``: its failure would be evidence.
    """
    assert attack.together is not None, "it was not run"
    succeeded = _is_off(attack.together) or any(alarms.outcome == attack for alarms in _beyond_chance(attacks))
    few = (Reason("too few samples", FEW),) if attack.round in _rounds_of_few(attacks) else ()
    return Status.of(succeeded, few if limit is None else (*few, limit))


def not_attacked(attacks: Sequence[MembershipOutcome]) -> list[int]:
    """The rounds in which membership was to be attacked, and no attack could be mounted."""
    return sorted({attack.round for attack in attacks} - {attack.outcome.round for attack in ran(attacks)})


def not_run(attacks: Sequence[MembershipOutcome]) -> dict[str, str]:
    """Why attacks were not run, by attack; with the round where the reason is not that of every round.

    Empty where no round could be attacked, which :attr:`AuditedRun.not_run` gives.
    """
    rounds = {attack.round for attack in attacks if attack.uses is not None}
    if not rounds:
        return {}
    latest = max(attack.round for attack in attacks)
    reasons, whole_rounds = dict[str, dict[int, str]](), dict[str, str]()
    for attack in sorted(attacks, key=lambda attack: (attack.round != latest, attack.round)):
        if attack.uses is None:
            whole_rounds[f"{attack.attack}, round {attack.round}"] = attack.status.why
        elif not attack.status.was_run:
            reasons.setdefault(attack.attack, {})[attack.round] = attack.status.why
    shown = dict[str, str]()
    for name, by_round in reasons.items():
        if len(by_round) == len(rounds) and len(set(by_round.values())) == 1:
            shown[name] = next(iter(by_round.values()))
        else:
            shown |= {f"{name}, round {round}": reason for round, reason in by_round.items()}
    return shown | whole_rounds


def too_few(attacks: Sequence[MembershipOutcome]) -> bool:
    """Whether some round has so few candidates that not even a perfect attack could be distinguished from guessing."""
    return bool(_rounds_of_few(attacks))


def _rounds_of_few(attacks: Sequence[MembershipOutcome]) -> list[int]:
    separations, asked = list(ran(attacks)), dict[int, set[tuple[int, int]]]()
    confidence = 1 - LEVEL / max(1, len(separations))
    for attack in separations:
        asked.setdefault(attack.outcome.round, set()).add((attack.points.members, attack.points.non_members))
    return [round for round, numbers in asked.items() if not any(can_tell(*pair, confidence) for pair in numbers)]


def largest_open(attacks: Sequence[MembershipOutcome]) -> float | None:
    """The largest area that attacks leave open, by the simultaneous intervals; ``None``: none was run.

    That of a :func:`reversed_attack` is 1 minus the lower end.
    """
    bounds = [attack.together.high for attack in ran(attacks)]
    if (turned := reversed_attack(attacks)) is not None:
        bounds.append(1 - turned.together.low)
    return max(bounds, default=None)
