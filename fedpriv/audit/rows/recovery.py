"""Attacks on the rows behind a run's real messages, and on the easiest case: simulated clients that hold one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.row_attempts import RowAttempt, suited_to_rows
from fedpriv.attacks.lab.trial import Attacker, Trial
from fedpriv.audit.judge.rows import all_recovered, beyond_guesses
from fedpriv.audit.progress import Say, spent
from fedpriv.audit.record.base import Record
from fedpriv.audit.results.outcome import ControlResult, Sender, TargetKind
from fedpriv.audit.results.rows import RowOutcome, RowRates, RowTarget
from fedpriv.audit.rows.figures import rates_of, row_figures
from fedpriv.audit.rows.target import Target, message, of_messages

SINGLES = 72
"""Largest number of rows of the easiest case, for closed forms: if none of them is recovered, the rate may still be up to 5 %."""
OPTIMISED = 8
"""Number of these on which attacks that optimise are tried."""


@dataclass(frozen=True)
class AttackedRows:
    """A target with the outcomes of all attacks on it, and their controls."""

    result: RowTarget
    controls: tuple[ControlResult, ...]


def on_message(record: Record, round: int, client: int, seed: int, say: Say) -> AttackedRows:
    """Attack a client's message of a round."""
    target = message(record, round, client)
    target = target.described(record, round, client, f"{len(target.rows)} training rows")
    return _attacked(target, "message", round, record.sender(round, client), seed, say)


def on_single_rows(record: Record, round: int, client: int, seed: int, say: Say, most: int) -> AttackedRows:
    """Attack the messages of simulated clients that hold one row each.

    Args:
        most: largest number of rows for attacks that optimise.
    """
    alone = record.alone(round, client, SINGLES)
    rows = torch.stack([record.rows(owner)[at] for owner, at in alone.samples])
    labels = torch.stack([record.labels(owner)[at] for owner, at in alone.samples])
    title = f"clients with one row each, {len(alone.messages)} in round {round}"
    target = of_messages(record, title, alone.messages, rows, labels)
    return _attacked(target, "single row", round, record.one_client(client), seed, say, min(most, OPTIMISED))


def _attacked(
    target: Target, kind: TargetKind, round: int, sender: Sender, seed: int, say: Say, most: int | None = None
) -> AttackedRows:
    """
    Args:
        most: the largest number of messages for attacks that optimise; once one attack recovered every row, these are not
            tried. ``None``: all are tried on all.
    """
    guesses = target.guesses()
    result = RowTarget(
        title=target.title, kind=kind, round=round, sender=sender, samples=len(target.rows), columns=len(target.encoding.columns),
        outcomes=(), baselines={name: rates_of(hits) for name, hits in guesses.items()},
    )  # fmt: skip
    controls = list[ControlResult]()
    for part, attacker in _tried(target):
        enough = _enough(result) if most is not None and attacker.attack.optimises else None
        if enough is not None:
            attempt = RowAttempt(attacker, inapplicable=enough)
        else:
            say(f"{target.title}: {attacker.name}")
            # An attack that learns from public rows trains one net for all messages of a round.
            all_of_them = most is None or not attacker.attack.optimises or attacker.threat.public
            few = part if most is None or all_of_them else part.first(min(most, part.count))
            attempt = few.run(attacker, Trial(seed, partial(spent, say)))
        controls += [ControlResult(attacker.attack.name, **vars(control)) for control in attempt.controls]
        result = result.only([*result.outcomes, _outcome(attempt, target, guesses, result.baselines)])
    return AttackedRows(result, tuple(controls))


def _tried(target: Target) -> Iterator[tuple[Target, Attacker[RowAttack]]]:
    """What of the messages is attacked, with every attacker that suits it: the model's change, and statistics that are
    gradients."""
    yield from ((target, attacker) for attacker in suited_to_rows(target.hidden))
    for what, part in target.statistics.items():
        yield from ((part, replace(attacker, what=what)) for attacker in suited_to_rows(part.hidden))


def _enough(result: RowTarget) -> Reason | None:
    """Why no further attack is needed: every row was recovered."""
    return Reason("not needed", f"all {result.samples} rows were recovered") if all_recovered(result) else None


def _outcome(attempt: RowAttempt, target: Target, guesses: Mapping[str, Tensor], baselines: Mapping[str, RowRates]) -> RowOutcome:
    attacker, figures = attempt.attacker, row_figures(attempt, target.rows, target.encoding, guesses, target.constant)
    return RowOutcome(
        attack=attacker.name,
        status=attempt.status(figures is not None and beyond_guesses(figures, baselines)),
        knows=tuple(attacker.threat.sentences("rows")),
        budget=_budget(attacker),
        statistic=attacker.what or None,
        figures=figures,
    )


def _budget(attacker: Attacker[RowAttack]) -> str:
    if not attacker.attack.optimises:
        return "no optimisation"
    words = {"steps": "steps of Adam", "starts": "starts", "sweeps": "sweeps"}
    options = {each.name: getattr(attacker.attack, each.name) for each in fields(attacker.attack)}  # type: ignore[arg-type]
    return ", ".join(f"{options[name]} {word}" for name, word in words.items() if name in options)
