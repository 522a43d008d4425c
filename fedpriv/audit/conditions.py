"""Conditions on an audit's results, for pipelines: ``recovered>0.05,membership_auc>0.6,epsilon>8``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedpriv.audit.judge.measures import MEASURES
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.errors import UnknownName, UsageError

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([0-9.eE+-]+|inf)\s*")


@dataclass(frozen=True)
class Condition:
    """A measure compared with a bound."""

    measure: str
    compare: str
    bound: float

    def __str__(self) -> str:
        return f"{self.measure}{self.compare}{self.bound:g}"

    def value(self, run: AuditedRun) -> float | None:
        """The measure in a run; ``None``: not known."""
        return MEASURES[self.measure].value(run)

    def allows(self, value: float) -> bool:
        """Whether a value of the measure meets the condition."""
        return _OPERATORS[self.compare](value, self.bound)

    def holds(self, run: AuditedRun) -> bool:
        """Whether a run meets the condition as a target; an unknown value does not meet it."""
        if self.compare in ("<", "<=") and self._open(run) is not None:
            return False
        return (value := self.value(run)) is not None and self.allows(value)

    def met(self, run: AuditedRun) -> str | None:
        """Why a run meets the condition as an alarm, in a line; ``None``: it does not.

        To be safe, an unknown value counts as met.
        """
        value = self.value(run)
        if value is not None and self.allows(value):
            return f"{self.measure} is {value:.3g} ({self})"
        if self.compare in (">", ">=") and (why := self._open(run)) is not None:
            return f"{self.measure} is not known, as {why} ({self})"
        if value is None:
            return f"{self.measure} is not known, as {MEASURES[self.measure].unknown} ({self})"
        return None

    def _open(self, run: AuditedRun) -> str | None:
        measure = MEASURES[self.measure]
        is_all = measure.is_share and measure.value(run) == 1  # nothing is more than all
        return None if is_all else measure.left_open(run)


def conditions(text: str, option: str = "--fail-if") -> list[Condition]:
    """Read conditions that are separated by commas.

    Args:
        option: the option they are given by, for errors.

    Raises:
        UsageError: a condition has another form, or an unknown measure.
    """
    wanted = []
    for part in text.split(","):
        match = _FORM.fullmatch(part)
        try:
            bound = float(match[3]) if match else math.nan
        except ValueError:
            bound = math.nan
        if match is None or math.isnan(bound):
            raise UsageError(f"{option} {part.strip()!r}: needs a measure, one of > >= < <=, and a number, such as recovered>0")
        if match[1] not in MEASURES:
            raise UnknownName(f"measure of {option}", match[1], MEASURES)
        if MEASURES[match[1]].is_share and not 0 <= bound <= 1:
            raise UsageError(f"{option} {part.strip()}: {match[1]} is a share from 0 to 1, such as 0.05 for 5 %")
        wanted.append(Condition(match[1], match[2], bound))
    return wanted


def first_met(runs: Sequence[AuditedRun], wanted: Sequence[Condition]) -> str | None:
    """The first condition that one of the runs meets, in a line with the run's name; ``None``: none is met."""
    reasons = ((run.name, condition.met(run)) for run in runs for condition in wanted)
    return next((f"{name}: {why}" for name, why in reasons if why is not None), None)
