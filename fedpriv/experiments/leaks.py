"""What ``fedpriv audit`` found in an experiment's run, stored with its result: accuracy, bytes and leakage of the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.audit.membership.classes import NO_RULE
from fedpriv.audit.membership.verdict import best_attack
from fedpriv.audit.text.verdict import best_reading
from fedpriv.audit.verdict import beside_copies, best_attempt, counted
from fedpriv.experiments.markdown import table
from fedpriv.experiments.results import Result, rounded
from fedpriv.tracking.folder import audit_of

Found = Mapping[str, Any]

TITLE = "### What the messages leak"
TEXT = """Found by `fedpriv audit` in the same runs, from the messages that were sent.

* *round*: of the samples behind one client's message, those that the best attack reconstructed (images: mean squared error below
  0.01). *copies*: how many copies of the nearest public images would pass the same threshold. If these are at least as many, the
  number after the semicolon is what the attack has below a stricter error, where it has more than the copies.
* *one sample each*: the same for simulated clients with a single sample.
* *members*: AUC of the best membership attack on the kept messages (0.5 is guessing); the interval holds for all attacks at once.
  *by round*: the same in each round that was looked at; the largest of several attacks is above 0.5 even where all guess.
* *classes by rule*: kept messages from which the client's set of classes was found exactly, by the last layer's gradient or the
  class centres. *by shadows*: clients whose set was found exactly by a classifier trained on messages of simulated clients, in
  the first of these rounds.
* A dash: no attack whose failure would be evidence could be mounted, so it is not known."""


def leakage(run_dir: Path) -> dict[str, Any]:
    """The figures of the audit in a run's folder, as JSON.

    Returns:
        ``answer``; ``messages``: round, samples and ``recovered`` of each message that was attacked (``None``: no attack counts),
        of images also ``copies``, what copies of public images would count for, and where that is as much ``closer``, what was
        recovered at a stricter threshold; ``singles``: the same of clients with one sample each; ``members``: ``auc``, ``low``
        and ``high`` of the best membership attack; ``members_by_round``: the same in each round; ``classes``: ``exact`` of ``of``
        messages, by the last layer's gradient or the class centres (``None``: neither was sent); ``classes_by_shadows``; and the
        audit's ``options``. Empty where the run was not audited.

    Raises:
        UsageError: the report in the folder is not what fedpriv writes.
    """
    with audit_of(run_dir) as run:
        return {name: rounded(value) for name, value in _figures(run).items()} if run else {}


def _figures(run: Found) -> dict[str, Any]:
    targets = [_target(one) for one in (*run["attacks"], *(run.get("texts") or []))]
    singles = [one for one in targets if one["kind"] != "message"]
    return {
        "answer": run["answer"]["words"],
        "messages": [one for one in targets if one["kind"] == "message"],
        "singles": max(singles, key=lambda one: (one["recovered"] or 0) / one["samples"], default=None),
        "members": _members(run["membership"]),
        "members_by_round": _members_by_round(run["membership"]),
        "classes": _classes(run["labels"]),
        "classes_by_shadows": run["label_shadow"],
        "options": run["options"],
    }


def _target(one: Found) -> dict[str, Any]:
    """A message, or the clients with one sample each, and how many of its samples the best attack recovered."""
    if "images" in one:
        samples, best = one["images"], best_attempt(one)
        hit = best and counted(best)
    else:
        samples, best = one["texts"], best_reading(one)
        hit = best and best["exact"]
    return {
        **{name: one[name] for name in ("kind", "round", "client")},
        "samples": hit["n"] if hit else samples,  # an attack may have been tried on some of them
        "recovered": hit and hit["successes"],
        "attack": best and best["attacker"],
        **(_beside(one, best) if "images" in one and best and hit and hit["successes"] else {}),
    }


def _beside(attack: Found, best: Found) -> dict[str, Any]:
    """For how many of the images copies of public ones would count, and which were recovered more closely than any copy."""
    copies, closer = beside_copies(attack, best)
    if closer is None:
        return {"copies": copies}
    attempt, limit = closer
    return {"copies": copies, "closer": {"recovered": attempt["success"][limit]["successes"], "limit": float(limit)}}


def _members(attacks: Sequence[Found]) -> dict[str, Any] | None:
    best = best_attack(attacks)
    return None if best is None else {"attack": best["attack"], "auc": best["auc"], **best["together"]}


def _members_by_round(attacks: Sequence[Found]) -> list[dict[str, Any]]:
    """The best attack of each round, without the rounds in which none could be mounted."""
    by_round = {
        number: _members([one for one in attacks if one["round"] == number]) for number in {one["round"] for one in attacks}
    }
    return [{"round": number, **best} for number, best in sorted(by_round.items()) if best]


def _classes(labels: Sequence[Found]) -> dict[str, int] | None:
    if all(one["how"] == NO_RULE for one in labels):
        return None
    return {"exact": sum(bool(one["exact"]) for one in labels), "of": len(labels)}


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
    messages = {one["round"]: one for one in found["messages"]}
    members, classes, shadows = found["members"], found["classes"], found["classes_by_shadows"]
    return [
        result.label,
        str(result.seed),
        found["answer"],
        *(_recovered(messages.get(number)) for number in rounds),
        _recovered(found["singles"]),
        f"{members['auc']:.2f} ({members['low']:.2f} to {members['high']:.2f})" if members else "–",
        ", ".join(f"{one['round']}: {one['auc']:.2f}" for one in found.get("members_by_round") or []) or "–",
        f"{classes['exact']} of {classes['of']}" if classes else "–",
        f"{round(shadows['exact'] * shadows['clients'])} of {shadows['clients']}" if shadows else "–",
    ]


def _recovered(one: Found | None) -> str:
    if one is None or one["recovered"] is None:
        return "–"
    beside = [f"copies {one['copies']}"] if one.get("copies") else []
    if closer := one.get("closer"):
        beside.append(f"{closer['recovered']} below {closer['limit']:g}")
    rate = f"{one['recovered']} of {one['samples']}"
    return f"{rate} ({'; '.join(beside)})" if beside else rate
