"""Conditions on what an audit found, for pipelines: ``recovered>0.05,membership_auc>0.6,epsilon>8``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedpriv.audit.judge.measures import MEASURES
from fedpriv.audit.results import AuditedRun
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
        """Its measure in a run; ``None``: not known."""
        return MEASURES[self.measure].value(run)

    def allows(self, value: float) -> bool:
        """Whether it is true of a value of its measure."""
        return _OPERATORS[self.compare](value, self.bound)

    def holds(self, run: AuditedRun) -> bool:
        """Whether a run meets it as a target: what is not known does not."""
        if self.compare in ("<", "<=") and self._open(run) is not None:
            return False
        return (value := self.value(run)) is not None and self.allows(value)

    def met(self, run: AuditedRun) -> str | None:
        """Why a run meets it as an alarm, in a line; ``None``: it does not. What is not known counts as met."""
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
    """Read conditions that are parted by commas.

    Args:
        option: which one they are of, for errors.

    Raises:
        UsageError: one has another form, or an unknown measure.
    """
    found = []
    for part in text.split(","):
        match = _FORM.fullmatch(part)
        try:
            bound = float(match[3]) if match else math.nan
        except ValueError:
            bound = math.nan
        if match is None or math.isnan(bound):
            raise UsageError(f"{option} {part.strip()!r}: a measure, one of > >= < <=, and a number, such as recovered>0")
        if match[1] not in MEASURES:
            raise UnknownName(f"measure of {option}", match[1], MEASURES)
        if MEASURES[match[1]].is_share and not 0 <= bound <= 1:
            raise UsageError(f"{option} {part.strip()}: {match[1]} is a share from 0 to 1, such as 0.05 for 5 %")
        found.append(Condition(match[1], match[2], bound))
    return found


def first_met(runs: Sequence[AuditedRun], wanted: Sequence[Condition]) -> str | None:
    """The first condition that holds of one of the runs, in a line with the run's name; ``None``: none does."""
    return next((f"{run.name}: {why}" for run in runs for one in wanted if (why := one.met(run)) is not None), None)
