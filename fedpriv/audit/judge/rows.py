"""What attacks on rows of a table show: cells and whole rows recovered, and whether that is more than guesses recover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedpriv.attacks.scoring.row_scores import BY_CHANCE
from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.membership import KnownMembers
from fedpriv.audit.results.outcome import TargetKind
from fedpriv.audit.results.rows import RowFigures, RowOutcome, RowRates, RowTarget


@dataclass(frozen=True)
class BestRows:
    """An attack on a target's rows, with its figures."""

    target: RowTarget
    outcome: RowOutcome
    figures: RowFigures


def ran(target: RowTarget) -> Iterator[BestRows]:
    """The attacks that were run."""
    return (BestRows(target, outcome, outcome.figures) for outcome in target.outcomes if outcome.figures is not None)


def guessed(baselines: Mapping[str, RowRates]) -> RowRates:
    """The guess with most cells right."""
    return max(baselines.values(), key=lambda guess: (guess.cells.share, guess.rows.share))


def whole_rows(figures: RowFigures, baselines: Mapping[str, RowRates]) -> bool:
    """Whether rows were recovered in every cell, hardly by chance, and no guess has all of them."""
    return figures.sure.successes > 0 and all(guess.rows.share < 1 for guess in baselines.values())


def cells(figures: RowFigures, baselines: Mapping[str, RowRates]) -> bool:
    """Whether more cells were recovered than by any guess, and so many hardly by chance."""
    return figures.cells.share > guessed(baselines).cells.share and figures.by_chance <= BY_CHANCE


def beyond_guesses(figures: RowFigures, baselines: Mapping[str, RowRates]) -> bool:
    """Whether whole rows, or cells, were recovered beyond guesses."""
    return whole_rows(figures, baselines) or cells(figures, baselines)


def conclusive(target: RowTarget) -> list[BestRows]:
    """The attacks that recovered more than guesses, or whose failure is evidence; the others measure nothing."""
    return [
        attack for attack in ran(target) if attack.outcome.status.is_evidence or beyond_guesses(attack.figures, target.baselines)
    ]


def best(target: RowTarget) -> BestRows | None:
    """The conclusive attack that recovered most rows; among equals, most cells."""
    return max(conclusive(target), key=_merit, default=None)


def best_of(run: AuditedRun, kind: TargetKind) -> BestRows | None:
    """The attack that recovered most, of all targets of a kind."""
    each = (best(target) for target in run.rows if target.kind == kind)
    return max(filter(None, each), key=_merit, default=None)


def _merit(attack: BestRows) -> tuple[float, float]:
    return recovered(attack).share, attack.figures.cells.share


def recovered(attack: BestRows) -> Rate:
    """The rate of whole rows that are hardly right by chance; where a guess has all, 0 of them."""
    rate = attack.figures.sure
    return rate if whole_rows(attack.figures, attack.target.baselines) else wilson(0, rate.n)


def is_known(target: RowTarget) -> bool:
    """Whether it is known what can be recovered: more was recovered than guesses recover, or an attack's failure is evidence."""
    return bool(conclusive(target))


def all_recovered(target: RowTarget) -> bool:
    """Whether an attack recovered every row, and guesses do not."""
    return (most := best(target)) is not None and recovered(most).share == 1


def may_be_more(target: RowTarget) -> str | None:
    """Why more may be recoverable than was recovered: no attack's failure is evidence.

    ``None``: some attack's failure is evidence, or every row was recovered, or no attack is conclusive.
    """
    statuses = [attack.outcome.status for attack in ran(target)]
    if best(target) is None or all_recovered(target) or any(status.is_evidence for status in statuses):
        return None
    return "; ".join(dict.fromkeys(status.why for status in statuses))


def known_members(targets: Iterable[RowTarget]) -> Iterator[KnownMembers]:
    """The real messages from which whole rows were recovered, which are therefore known members."""
    for target in targets:
        if target.kind == "message" and (most := best(target)) is not None and (rate := recovered(most)).successes:
            yield KnownMembers(round=target.round, sender=target.sender, what="rows", attack=most.outcome.attack, rate=rate)
