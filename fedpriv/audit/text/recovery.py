"""Attacks on the texts behind a run's real messages, and on the easiest case: simulated clients that hold one text."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from math import inf

from fedpriv.attacks.attack import TextAttack, text_attacks
from fedpriv.attacks.lab.trial import Attacker, Trial
from fedpriv.audit.progress import Say, spent
from fedpriv.audit.record.base import Record
from fedpriv.audit.results.outcome import Sender, TargetKind
from fedpriv.audit.results.texts import TextOutcome, TextScoreMeans, TextTargetResult
from fedpriv.audit.text.attempts import TextAttempt, TextTarget
from fedpriv.audit.text.figures import guess, score_figures, status_of, text_figures
from fedpriv.audit.text.target import message, of_messages

EASIEST = 4
"""Number of texts of the easiest case."""


def audited() -> list[TextAttack]:
    """The attacks of audits, at their usual budgets: closed forms first, then those for the fewest sentences at once."""
    kinds = [kind for kind in text_attacks().values() if kind.audit_options is not None]
    kinds.sort(key=lambda kind: (kind.optimises, inf if kind.max_batch is None else kind.max_batch))
    return [kind(**(kind.audit_options or {})) for kind in kinds]


def on_message(record: Record, round: int, client: int, seed: int, say: Say) -> TextTargetResult:
    """Attack a client's message of a round."""
    target = message(record, round, client)
    target = replace(target, title=record.title(round, client, f"{len(target.ids)} training texts"))
    return _attacked(target, "message", round, record.sender(round, client), seed, say)


def on_single_texts(record: Record, round: int, client: int, seed: int, say: Say) -> TextTargetResult:
    """Attack the messages of simulated clients that hold one text each."""
    n = min(EASIEST, len(record.labels(client)))
    results = record.alone(round, client, n).messages
    title = f"clients with one text each, {n} of {record.one_client(client).named}'s, in round {round}"
    ids, labels = record.texts(client)[:n], record.labels(client)[:n]
    target = of_messages(record, title, results, ids, labels)
    return _attacked(target, "single text", round, record.one_client(client), seed, say)


def _attacked(target: TextTarget, kind: TargetKind, round: int, sender: Sender, seed: int, say: Say) -> TextTargetResult:
    tried = [Attacker(attack) for attack in audited()]
    if target.hidden:
        tried += [
            replace(attacker, threat=replace(attacker.threat, top="initial")) for attacker in tried if attacker.attack.finds_order
        ]
    tried += [replace(attacker, what=what) for what in target.statistics for attacker in tried]
    baseline, outcomes = score_figures(guess(target, seed)), list[TextOutcome]()
    for attacker in tried:
        say(f"{target.title}: {attacker.name}")
        outcomes.append(_outcome(target.run(attacker, Trial(seed, partial(spent, say))), target, baseline))
    return TextTargetResult(
        title=target.title, kind=kind, round=round, sender=sender, samples=len(target.ids), outcomes=tuple(outcomes),
        baseline=baseline,
    )  # fmt: skip


def _outcome(attempt: TextAttempt, target: TextTarget, baseline: TextScoreMeans) -> TextOutcome:
    attacker, figures = attempt.attacker, text_figures(attempt, target)
    return TextOutcome(
        attack=attacker.name,
        status=status_of(attempt, figures, baseline),
        knows=tuple(attacker.threat.sentences("texts")),
        budget=_budget(attacker),
        statistic=attacker.what or None,
        figures=figures,
        partial_leakage=attempt.left,
    )


def _budget(attacker: Attacker[TextAttack]) -> str:
    options = {f.name: getattr(attacker.attack, f.name) for f in fields(attacker.attack)}  # type: ignore[arg-type]
    counts = [(options[f"{word}s"], word) for word in ("step", "start", "sweep") if f"{word}s" in options]
    shown = [f"{n} {word}{'s' * (n != 1)}{' of Adam' * (word == 'step')}" for n, word in counts]
    return ", ".join(shown) or "no optimisation"
