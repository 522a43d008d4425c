"""What attribute inference shows: whether a message names hidden values of rows beyond what the other columns tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.rows import AttributeFigures, AttributeOutcome

FEW = "with so few rows not even naming every value would be distinguished from what the other columns tell"


@dataclass(frozen=True)
class Inferred:
    """An outcome with its figures."""

    outcome: AttributeOutcome
    figures: AttributeFigures


def ran(outcomes: Sequence[AttributeOutcome]) -> Iterator[Inferred]:
    """The columns that were attacked."""
    return (Inferred(outcome, outcome.figures) for outcome in outcomes if outcome.figures is not None)


def succeeded(figures: AttributeFigures) -> bool:
    """Whether the message names values beyond what the other columns tell, by the interval for all columns at once."""
    return figures.together.low > 0


def best(outcomes: Sequence[AttributeOutcome]) -> Inferred | None:
    """The column of the largest advantage, by the lower end of its interval; ``None``: none was attacked."""
    return max(ran(outcomes), key=lambda inferred: (inferred.figures.together.low, inferred.figures.advantage), default=None)


def inferred(run: AuditedRun) -> list[Inferred]:
    """The columns of which a message names values beyond what the others tell, the largest advantage first."""
    beyond = [attack for attack in ran(run.attributes) if succeeded(attack.figures)]
    return sorted(beyond, key=lambda attack: -attack.figures.advantage)


def not_known(run: AuditedRun) -> str | None:
    """Why attributes may be inferable though none was inferred: of no column a failure is evidence; ``None``: of some it is."""
    if inferred(run) or any(outcome.status.is_evidence for outcome in run.attributes):
        return None
    reasons = dict.fromkeys(outcome.status.why for outcome in run.attributes)
    return "; ".join(reasons) or str(run.not_run.get("attributes", "it was not attacked"))


def advantage(run: AuditedRun) -> float | None:
    """By how much a message names the values of a hidden column more often than the other columns tell them, where that is
    significant: the largest of all columns; 0: none is; ``None``: no column was attacked."""
    values = [attack.figures.advantage for attack in inferred(run)]
    return max(values, default=0.0 if any(ran(run.attributes)) else None)
