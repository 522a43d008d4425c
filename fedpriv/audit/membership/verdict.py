"""Conclusions on membership, in sentences: from reconstructions first, then from membership attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.scoring.scores import RECOVERED
from fedpriv.audit.text.verdict import best_reading

NO_RULE = "no rule applies"

Found = Mapping[str, Any]
LEVEL = 0.05
"""How likely guessing may be to find as many members at few false alarms as what is called more than guessing."""


def known_members(attacks: Sequence[Found], texts: Sequence[Found]) -> list[dict[str, Any]]:
    """The messages from which training samples were reconstructed, which shows that these were trained on.

    Of each message what the attacker found that found most; others may have found others.

    Args:
        attacks, texts: as in the findings of a run. Only real messages count, not what the audit played.
    """
    found = []
    for attack in attacks:
        tried = [one for one in attack["attempts"] if not one.get("inapplicable")]
        hits = [(one["attacker"], one["success"][f"{RECOVERED:g}"]) for one in tried]
        found += _known(attack, "images", max(hits, key=lambda hit: hit[1]["successes"], default=None))
    for read in texts:
        best = best_reading(read)
        found += _known(read, "texts", (best["attacker"], best["exact"]) if best and best["exact"] else None)
    return found


def of_membership(run: Found) -> list[str]:
    """The sentences for one run of the report."""
    known, said = run.get("known_members") or [], []
    if known:
        told = "; ".join(f"{_count(one)} {one['what']} behind {_message(one)}, by {one['attacker']}" for one in known)
        said.append(f"Samples that were reconstructed are known to have been trained on: {told}.")
    if run["membership"]:
        said.append(_attacks(run["membership"], bool(known)))
    failed = run.get("membership_not_tried") or {}
    if failed:
        reasons = "; ".join(f"{attack} ({reason})" for attack, reason in failed.items())
        said.append(f"Membership attacks that were not tried, which says nothing about what they would tell: {reasons}.")
    return said


def _known(target: Found, what: str, best: tuple[str, Found] | None) -> list[dict[str, Any]]:
    if target["kind"] != "message" or best is None or not best[1]["successes"]:
        return []
    return [{"round": target["round"], "client": target["client"], "what": what, "attacker": best[0], "known": dict(best[1])}]


def _attacks(attacks: Sequence[Found], besides: bool) -> str:
    best, count = max(attacks, key=lambda one: one["auc"]), len(attacks)
    interval = f"95 % interval {best['together']['low']:.2f} to {best['together']['high']:.2f}"
    held = f", which holds for the best of {count}" if count > 1 else ""
    area = f"AUC {best['auc']:.2f}, {interval}{held}; 0.5 is guessing"
    asked = f"{best['members']} members and {best['non_members']} others"
    few = _at_few_false_alarms(attacks)
    if best["together"]["low"] > 0.5:
        tells = f"The best of {count} membership attacks, {best['attack']}, tells whether a sample was trained on"
        return f"{tells}, asked of {asked} ({area}){f'; {few}' if few else ''}."
    if besides and not few:
        which = f"the best of {count}, {best['attack']}, asked of {asked}: {area}"
        return f"Membership attacks, which score given samples, showed nothing beyond that ({which})."
    cannot = f"the best of {count} membership attacks, {best['attack']}, cannot be told from guessing with these {asked} ({area})"
    if few:
        return f"At few false alarms, members are found: {few}. Over all thresholds, {cannot}."
    return f"As to who was trained on, {cannot}."


def _at_few_false_alarms(attacks: Sequence[Found]) -> str | None:
    """What is found at the false-positive rates of the table, where guessing would hardly find as many under any of them."""
    points = [(one, rate, point) for one in attacks for rate, point in one["tpr"].items() if point]
    if not points:
        return None
    one, rate, point = min(points, key=lambda found: found[2]["by_chance"])
    if point["by_chance"] * len(points) >= LEVEL:
        return None
    found = f"{point['share']:.0%} of the members at {100 * float(rate):g}% false alarms"
    return f"{one['attack']} finds {found} (95 % interval {point['low']:.0%} to {point['high']:.0%})"


def _count(one: Found) -> str:
    return f"{one['known']['successes']} of {one['known']['n']} training"


def _message(one: Found) -> str:
    return f"client {one['client']}'s message of round {one['round']}"
