"""Membership inference in several rounds of a run: each has a leak of its own, and the intervals hold for all attacks at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedpriv.attacks.scoring.operating_points import OperatingPoints, Point
from fedpriv.audit.evidence.earlier_turns import had_earlier_turn
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.images.figures import rate
from fedpriv.audit.membership.inference import FEDMIA, LIRA, Membership, membership
from fedpriv.audit.progress import Progress
from fedpriv.errors import FedprivError

EARLIER = 8
"""Shadow turns for each client of a round before the last kept one, at most: a message of few local samples shows most there."""


def in_rounds(
    evidence: Evidence, earlier: Sequence[int], shadows: int, seed: int, not_tried: dict[str, str], progress: Progress
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Membership inference in the last kept round, and with fewer shadow turns in earlier ones: findings, and the lower bound of
    epsilon.

    Args:
        earlier: the other rounds; the last one among them does not count.
        shadows: shadow turns for each client of the last round; 0: none is attacked.
        not_tried: gets the reason where no round could be attacked.
    """
    last = evidence.store.rounds()[-1]
    found, refused, blamed = list[Membership](), dict[int, str](), list[dict[str, Any]]()
    for round in [last, *(one for one in earlier if one != last)] if shadows else []:
        turns = shadows if round == last else min(EARLIER, shadows)
        try:
            progress.in_time()
            clients = evidence.whole_clients(round)
            progress(f"membership: {turns} shadow models for each of {len(clients)} clients of round {round}")
            made = membership(evidence, round, clients, turns, seed)
        except FedprivError as error:
            refused[round] = str(error)
            continue
        if failed := made.failed_controls:  # a fault, other samples than the members, or a chance of one in a thousand
            refused[round] = f"{', '.join(failed)} found members in the negative control, so no attack of the round counts"
            blamed += made.described_controls()
        else:
            found.append(made)
    findings = _found_in(found, last) | {"membership_rounds": sorted({*refused, *(one.round for one in found)})}
    findings["membership_open"] = _open(evidence, [one.round for one in found])
    findings["membership_controls"] += blamed
    if not found and refused:
        not_tried["membership"] = "; ".join(dict.fromkeys(refused.values()))
        return findings, None
    findings["membership_not_tried"] |= {f"every attack, round {round}": reason for round, reason in refused.items()}
    epsilon = found[0].epsilon if found and found[0].round == last else None
    return findings, None if epsilon is None else asdict(epsilon)


def _open(evidence: Evidence, rounds: Sequence[int]) -> str | None:
    """Why it is no evidence that members were not found in some round; ``None``: it is."""
    corrected = evidence.federation.method.objective.corrects and [
        round for round in rounds if any(had_earlier_turn(evidence, round, client) for client in evidence.whole_clients(round))
    ]
    if not corrected:
        return None
    which = ", ".join(map(str, sorted(corrected)))
    return f"in round {which} the clients' gradients had a term from their earlier turns, which simulated clients lack"


def _found_in(rounds: Sequence[Membership], last: int) -> dict[str, Any]:
    """A row for each attack and round, the attacks that were not tried, and the controls.

    Args:
        last: the round whose lower bounds of epsilon are shown.
    """
    count, by_round = sum(len(found.attacks) for found in rounds), sorted(rounds, key=lambda found: found.round)
    return {
        "membership": [row for found in by_round for row in _rows(found, count, bounds=found.round == last)],
        "membership_not_tried": _not_tried(rounds),
        "membership_controls": [control for found in by_round for control in found.described_controls()],
    }


def _not_tried(rounds: Sequence[Membership]) -> dict[str, str]:
    """Why attacks were not tried, by attack; with the round where the reason is not that of every round."""
    reasons = defaultdict[str, dict[int, str]](dict)
    for found in rounds:
        for name, reason in found.not_tried.items():
            reasons[name][found.round] = reason
    shown = dict[str, str]()
    for name, of_rounds in reasons.items():
        if len(of_rounds) == len(rounds) and len(set(of_rounds.values())) == 1:
            shown[name] = next(iter(of_rounds.values()))
        else:
            shown |= {f"{name}, round {round}": reason for round, reason in of_rounds.items()}
    return shown


def _rows(found: Membership, count: int, bounds: bool) -> list[dict[str, Any]]:
    """
    Args:
        count: attacks of all rounds, for all of which ``together`` holds at once.
        bounds: whether the lower bounds of epsilon are shown.
    """
    clients = ", ".join(map(str, found.clients))
    bounded = {} if found.epsilon is None else dict(zip(found.likelihoods, found.epsilon.each, strict=True))
    lower, together = bounded if bounds else {}, found.together(count)
    return [
        {
            "round": found.round,
            "client": clients,
            "attack": f"{name}{_extent(found, name)}",
            "auc": points.auc.value,
            "auc_low": points.auc.low,
            "auc_high": points.auc.high,
            "together": {"low": together[name].low, "high": together[name].high, "of": count},
            "tpr": {f"{limit:g}": _point(point) for limit, point in points.at.items()},
            "members": points.members,
            "non_members": points.non_members,
            "roc": [list(pair) for pair in points.roc],
            "epsilon_lower": lower.get(name),
            "note": _notes(points),
            "knows": list(found.threat),
        }
        for name, points in found.attacks.items()
    ]


def _extent(found: Membership, name: str) -> str:
    """How many shadow turns, or how many rounds, an attack used."""
    if name.startswith(LIRA):
        return f" ({found.shadows} shadow models per client)"
    if name.startswith(FEDMIA):
        least, most = min(map(len, found.rounds)), max(map(len, found.rounds))
        return f" ({least if least == most else f'{least} to {most}'} round{'s' * (most > 1)} a client)"
    return ""


def _point(point: Point | None) -> dict[str, Any] | None:
    return None if point is None else rate(point.found) | {"by_chance": point.by_chance}


def _notes(points: OperatingPoints) -> str | None:
    return "; ".join(points.notes) or None
