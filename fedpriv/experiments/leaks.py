"""What ``fedpriv audit`` found in an experiment's run, stored with its result: accuracy, bytes and leakage of the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.judge import classes, images, members, texts
from fedpriv.audit.results import (
    AuditedRun,
    ImageOutcome,
    ImageTarget,
    LabelResult,
    MembershipOutcome,
    Outcome,
    ShadowLabels,
    TextTargetResult,
    audit_of,
)
from fedpriv.experiments.markdown import table
from fedpriv.experiments.results import Result, rounded

Found = Mapping[str, Any]

TITLE = "### What the messages leak"
TEXT = """Found by `fedpriv audit` in the same runs, from the messages that were sent.

* *round*: of the samples behind one client's message, those that the best attack reconstructed (images: mean squared error below
  0.01; texts: word for word). *copies*: how many copies of the nearest public images would pass the same threshold. If these are
  at least as many, the number after the semicolon is what the attack has below a stricter error, where it has more than the
  copies.
* *one sample each*: the same for simulated clients with a single sample.
* *members*: AUC of the best membership attack on the kept messages (0.5 is guessing); the interval holds for all attacks at once.
  *reversed*: the attack surely gives members lower scores than others, and its scores are read in the opposite order.
  *by round*: the same in each round that was looked at; the largest of several attacks is above 0.5 even where all guess.
* *classes by rule*: kept messages from which the client's set of classes was found exactly, by the last layer's gradient or the
  class centres. *by shadows*: clients whose set was found exactly by a classifier trained on messages of shadow clients, in
  the first of these rounds.
* A dash: no attack whose failure would be evidence could be mounted, so it is not known."""


def leakage(run_dir: Path) -> dict[str, Any]:
    """The figures of the audit in a run's folder, as JSON.

    Returns:
        ``answer``; ``messages``: round, samples and ``recovered`` of each message that was attacked (``None``: no attack counts),
        of texts ``what``, of images also ``copies``, what copies of public images would count for, and where that is as much
        ``closer``, what was recovered at a stricter threshold; ``singles``: the same of clients with one sample each;
        ``members``: ``auc``, ``low`` and ``high`` of the best membership attack, ``reversed`` where its scores are read in the
        opposite order (the area is that of the scores so read); ``members_by_round``: the same in each round; ``classes``:
        ``exact`` of ``of`` messages, by the last layer's gradient or the class centres (``None``: neither was sent);
        ``classes_by_shadows``; and the audit's ``options``. Empty where the run was not audited.

    Raises:
        UsageError: the report in the folder is not what fedpriv writes.
    """
    if (audited := audit_of(run_dir)) is None:
        return {}
    run, options = audited
    return {name: rounded(value) for name, value in _figures(run, options).items()}


def _figures(run: AuditedRun, options: Mapping[str, int | float | None]) -> dict[str, Any]:
    targets = [*map(_of_images, run.images), *map(_of_texts, run.texts)]
    singles = [one for one in targets if one["kind"] != "message"]
    return {
        "answer": run.concluded.words,
        "messages": [one for one in targets if one["kind"] == "message"],
        "singles": max(singles, key=_share_or_unknown, default=None),
        "members": _members(run.membership),
        "members_by_round": _members_by_round(run.membership),
        "classes": _classes(run.labels),
        "classes_by_shadows": _classes_by_shadows(run.shadow_labels),
        "options": dict(options),
    }


def _of_images(target: ImageTarget) -> dict[str, Any]:
    """A message, or the clients with one image each, and how many of its images the best attack recovered."""
    if (most := images.best(target)) is None:
        return _target(target, None, None)
    beside = _beside(target, most.outcome) if most.rate.successes else {}
    return _target(target, most.outcome, most.rate) | beside


def _of_texts(target: TextTargetResult) -> dict[str, Any]:
    """The same of texts."""
    found = texts.best(target)
    figures = _target(target, None, None) if found is None else _target(target, found.outcome, found.figures.exact)
    return {"what": "texts", **figures}


def _target(target: ImageTarget | TextTargetResult, best: Outcome | None, hit: Rate | None) -> dict[str, Any]:
    return {
        "kind": target.kind,
        "round": target.round,
        "client": target.sender.short if target.sender.client is None else target.sender.client,
        "samples": hit.n if hit else target.samples,  # an attack may have been tried on some of them
        "recovered": hit and hit.successes,
        "attack": best and best.attack,
    }


def _share_or_unknown(one: Found) -> tuple[float, bool]:
    """Of two targets of which nothing was recovered, the one of which that is not known is the worse."""
    return (one["recovered"] or 0) / one["samples"], one["recovered"] is None


def _beside(target: ImageTarget, best: ImageOutcome) -> dict[str, Any]:
    """For how many of the images copies of public ones would count, and which were recovered more closely than any copy."""
    assert best.figures is not None
    copies, closer = images.beside_guesses(target, best.figures)
    if closer is None:
        return {"copies": copies}
    return {"copies": copies, "closer": {"recovered": closer.rate.successes, "limit": float(closer.limit)}}


def _members(attacks: Sequence[MembershipOutcome]) -> dict[str, Any] | None:
    """The attack with the larger area, of the best one and of one whose scores reveal members in the opposite order."""
    best, turned = members.best(attacks), members.reversed_attack(attacks)
    if best is None:
        return None
    if turned is None or best.auc >= 1 - turned.auc:
        return {"attack": best.outcome.name, "auc": best.auc, **asdict(best.together)}
    span = {"low": 1 - turned.together.high, "high": 1 - turned.together.low, "of": turned.together.of}
    return {"attack": turned.outcome.name, "auc": 1 - turned.auc, **span, "reversed": True}


def _members_by_round(attacks: Sequence[MembershipOutcome]) -> list[dict[str, Any]]:
    """The best attack of each round, without the rounds in which none could be mounted."""
    by_round = {number: _members([one for one in attacks if one.round == number]) for number in {one.round for one in attacks}}
    return [{"round": number, **best} for number, best in sorted(by_round.items()) if best]


def _classes(labels: Sequence[LabelResult]) -> dict[str, int] | None:
    if not classes.by_rule(labels):
        return None
    return {"exact": sum(one.exact for one in labels), "of": len(labels)}


def _classes_by_shadows(shadow: ShadowLabels | None) -> dict[str, Any] | None:
    if shadow is None:
        return None
    counts = {name: getattr(shadow, name) for name in ("round", "shadows", "wider", "unlearned", "later")}
    return asdict(shadow.report) | counts


def section(results: Mapping[str, Mapping[int, Result]]) -> list[str]:
    """A table with a row for each result of an audited run; empty where there is none."""
    audited = [result for of_label in results.values() for _, result in sorted(of_label.items()) if result.leakage]
    if not audited:
        return []
    rounds = sorted({one["round"] for result in audited for one in result.leakage["messages"]})
    head = [
        "method",
        "seed",
        "answer",
        *(f"round {number}" for number in rounds),
        "one sample each",
        "members",
        "by round",
        "classes by rule",
        "by shadows",
    ]
    return [TITLE, table(" | ".join(head), [_row(result, rounds) for result in audited]), TEXT]


def _row(result: Result, rounds: Sequence[int]) -> list[str]:
    found = result.leakage
    tells, by_rule, shadows = found["members"], found["classes"], found["classes_by_shadows"]
    return [
        result.label,
        str(result.seed),
        found["answer"],
        *(_of_round([one for one in found["messages"] if one["round"] == number]) for number in rounds),
        _recovered(found["singles"]),
        f"{tells['auc']:.2f} ({tells['low']:.2f} to {tells['high']:.2f}{_reversed(tells, '; ')})" if tells else "–",
        ", ".join(f"{one['round']}: {one['auc']:.2f}{_reversed(one)}" for one in found.get("members_by_round") or []) or "–",
        f"{by_rule['exact']} of {by_rule['of']}" if by_rule else "–",
        f"{round(shadows['exact'] * shadows['clients'])} of {shadows['clients']}" if shadows else "–",
    ]


def _reversed(one: Found, before: str = " ") -> str:
    return f"{before}reversed" if one.get("reversed") else ""


def _of_round(messages: Sequence[Found]) -> str:
    """What was recovered from each message of a round; of a client's images and of its texts, whose message is the same."""
    if len({one.get("what", "images") for one in messages}) > 1:
        return "; ".join(f"{one.get('what', 'images')}: {_recovered(one)}" for one in messages)
    return ", ".join(map(_recovered, messages)) or "–"


def _recovered(one: Found | None) -> str:
    if one is None or one["recovered"] is None:
        return "–"
    beside = [f"copies {one['copies']}"] if one.get("copies") else []
    if closer := one.get("closer"):
        beside.append(f"{closer['recovered']} below {closer['limit']:g}")
    rate = f"{one['recovered']} of {one['samples']}"
    return f"{rate} ({'; '.join(beside)})" if beside else rate
