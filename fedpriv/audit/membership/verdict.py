"""Conclusions on membership, in sentences: from reconstructions first, then from membership attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.attacks.scoring.operating_points import can_tell
from fedpriv.audit.formats import message_of

Found = Mapping[str, Any]
LEVEL = 0.05
"""Significance level of results at low false-positive rates."""


def of_membership(run: Found) -> list[str]:
    """The sentences for one run of the report."""
    known, sentences = run.get("known_members") or [], []
    if known:
        members = "; ".join(f"{_count(one)} {one['what']} behind {message_of(one)}, by {one['attacker']}" for one in known)
        sentences.append(f"Reconstructed samples are known members: {members}.")
    if run["membership"]:
        sentences.append(of_attacks(run["membership"], bool(known)))
    failed = run.get("membership_not_tried") or {}
    if failed:
        reasons = "; ".join(f"{attack} ({reason})" for attack, reason in failed.items())
        sentences.append(f"Membership attacks that were not tried, so that their success is not known: {reasons}.")
    return sentences


def best_attack(attacks: Sequence[Found]) -> Found | None:
    """The membership attack whose area under the curve is surely largest, by the interval that holds for all at once.

    On as many samples it is that of the largest area; a round with few samples may have a larger one by chance. ``None``: there
    is none.
    """
    known = (one for one in attacks if one["auc"] is not None)
    return max(known, key=lambda one: (one["together"]["low"], one["auc"]), default=None)


def reversed_attack(attacks: Sequence[Found]) -> Found | None:
    """The membership attack that surely gives members lower scores than others, by the interval that holds for all at once.

    Read in the opposite order, its scores reveal members. ``None``: there is none.
    """
    known = (one for one in attacks if one["auc"] is not None and "together" in one and one["together"]["high"] < 0.5)
    return min(known, key=lambda one: (one["together"]["high"], one["auc"]), default=None)


def tells(attacks: Sequence[Found]) -> bool:
    """Whether a membership attack tells members from others, over all thresholds or at a low false-positive rate."""
    best = best_attack(attacks)
    either = best is not None and (best["together"]["low"] > 0.5 or reversed_attack(attacks) is not None)
    return either or few_false_alarms(attacks) is not None


def not_attacked(run: Found) -> list[int]:
    """The rounds in which membership was to be attacked, and no attack could be mounted."""
    return sorted({*run.get("membership_rounds", [])} - {one["round"] for one in run["membership"]})


def too_few(attacks: Sequence[Found]) -> bool:
    """Whether in some round so few members and others were asked that not even a perfect attack could be distinguished from
    guessing."""
    confidence, asked = 1 - LEVEL / max(1, len(attacks)), dict[int, set[tuple[int, int]]]()
    for one in attacks:
        if one.get("members") and one.get("non_members"):
            asked.setdefault(one["round"], set()).add((one["members"], one["non_members"]))
    return any(not any(can_tell(*numbers, confidence) for numbers in of_round) for of_round in asked.values())


def of_attacks(attacks: Sequence[Found], besides: bool = False) -> str:
    """The sentence on the best of some membership attacks.

    Args:
        attacks: at least one.
        besides: samples were reconstructed, which are members.
    """
    best, count = best_attack(attacks), len(attacks)
    assert best is not None
    interval = f"95 % interval {best['together']['low']:.2f} to {best['together']['high']:.2f}"
    held = f", which holds for the best of {count}" if count > 1 else ""
    area = f"AUC {best['auc']:.2f}, {interval}{held}; 0.5 is guessing"
    asked = f"{best['members']} members and {best['non_members']} non-members"
    few = few_false_alarms(attacks)
    if best["together"]["low"] <= 0.5 and (turned := reversed_attack(attacks)) is not None:
        span = f"{turned['together']['low']:.2f} to {turned['together']['high']:.2f}"
        return (
            f"Of {count} membership attacks, {_named(turned, attacks)} gives members lower scores than non-members, on "
            f"{turned['members']} members and {turned['non_members']} non-members (AUC {turned['auc']:.2f}, 95 % interval {span}"
            f"{held}): read in the opposite order, these scores tell them apart."
        )
    if best["together"]["low"] > 0.5:
        tells = f"The best of {count} membership attacks, {_named(best, attacks)}, separates members from non-members"
        return f"{tells}, on {asked} ({area}){f'; {few}' if few else ''}."
    if besides and not few:
        which = f"the best of {count}, {_named(best, attacks)}, on {asked}: {area}"
        return f"Membership attacks, which score given samples, showed nothing beyond that ({which})."
    cannot = (
        f"the best of {count} membership attacks, {_named(best, attacks)}, cannot be distinguished from guessing on {asked} "
        f"({area})"
    )
    if few:
        return f"At low false-positive rates, members are found: {few}. Over all thresholds, {cannot}."
    return f"Membership: {cannot}{'; with so few, not even a perfect attack could' if too_few(attacks) else ''}."


def few_false_alarms(attacks: Sequence[Found]) -> str | None:
    """The members found at the false-positive rates of the table, if guessing would hardly find as many at any of them."""
    points = [(one, rate, point) for one in attacks for rate, point in one["tpr"].items() if point]
    if not points:
        return None
    one, rate, point = min(points, key=lambda found: found[2]["by_chance"])
    if point["by_chance"] * len(points) >= LEVEL:
        return None
    found = f"{point['share']:.0%} of the members at a false-positive rate of {100 * float(rate):g}%"
    return f"{_named(one, attacks)} finds {found} (95 % interval {point['low']:.0%} to {point['high']:.0%})"


def _named(one: Found, attacks: Sequence[Found]) -> str:
    """An attack, with its round where several were attacked."""
    return f"{one['attack']}, round {one['round']}" if len({other["round"] for other in attacks}) > 1 else str(one["attack"])


def _count(one: Found) -> str:
    return f"{one['known']['successes']} of {one['known']['n']} training"
