"""What attacks and the run's own records say, as JSON: parts of ``audit.json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.attacks.scoring.operating_points import OperatingPoints, Point
from fedpriv.audit.cost import cost, signal_to_noise
from fedpriv.audit.evidence.leaving import conditions, crossed, knowledge
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.images.figures import rate
from fedpriv.audit.membership.inference import FEDMIA, LIRA, Membership
from fedpriv.audit.text.verdict import best_reading
from fedpriv.audit.verdict import best_attempt, counted


def facts(evidence: Evidence, summary: dict[str, Any]) -> dict[str, Any]:
    """The run: what it is, what it cost, what left its clients."""
    config, facts, federation = evidence.config, evidence.folder.facts, evidence.federation
    transforms = evidence.store.upload(*evidence.messages()[0]).transforms
    summed = ["secure aggregation"] if evidence.summed else []
    private = [f"{config.privacy.level}-level DP"] if config.privacy.level != "none" else []
    return {
        "name": evidence.folder.path.name,
        "run_id": facts["run_id"],
        "run_dir": str(evidence.folder.path),
        "method": config.called,
        "title": federation.method.title,
        "paper": federation.method.paper,
        "dataset": Path(config.data.name).name,
        "model": config.model.name,
        "modalities": list(evidence.modalities),
        "seed": config.seed,
        "clients": config.data.clients,
        "participants": config.participants_of(config.data.clients),
        "rounds": summary["rounds"],
        "defence": [*transforms, *summed, *private],
        "git_commit": facts.get("git_commit"),
        "versions": facts.get("versions") or {},
        "partition_hash": facts["partition_hash"],
        "config_yaml": config.to_yaml(),
        "cost": cost(evidence, summary),
        "snr": signal_to_noise(evidence.folder.records()),
        "wire": crossed(evidence),
        "knowledge": knowledge(evidence),
        "conditions": conditions(evidence),
    }


def best_of_images(attacks: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    """The attempt on images that recovered most, of a kind: ``message`` or ``single image``."""
    tried = [(attack, best) for attack in attacks if attack["kind"] == kind and (best := best_attempt(attack)) is not None]
    if not tried:
        return None
    attack, best = max(tried, key=lambda pair: (counted(pair[1])["share"], -pair[1]["mse_median"]))
    return {"attacker": best["attacker"], "target": attack["target"], "success": counted(best)}


def best_of_texts(texts: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    """The attempt on texts that found most tokens, of a kind: ``message`` or ``single text``."""
    tried = [(read, best) for read in texts if read["kind"] == kind and (best := best_reading(read)) is not None]
    if not tried:
        return None
    read, best = max(tried, key=lambda pair: pair[1]["recall"])
    figures = {name: best[name] for name in ("attacker", "recall", "precision", "exact")}
    return figures | {"target": read["target"], "guess": read["baseline"]["recall"]}


def of_membership(rounds: Sequence[Membership], last: int) -> dict[str, Any]:
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
        return f" ({found.shadows} shadow turns a client)"
    if name.startswith(FEDMIA):
        least, most = min(map(len, found.rounds)), max(map(len, found.rounds))
        return f" ({least if least == most else f'{least} to {most}'} round{'s' * (most > 1)} a client)"
    return ""


def _point(point: Point | None) -> dict[str, Any] | None:
    return None if point is None else rate(point.found) | {"by_chance": point.by_chance}


def _notes(points: OperatingPoints) -> str | None:
    return " ".join(points.notes) or None


def of_epsilon(
    statement: dict[str, Any] | None, lower: dict[str, Any] | None, by_canaries: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The ledger's statement beside the lower bounds of the attack and of canaries, where the run has differential privacy."""
    if statement is None:
        return None
    known = [statement["adjacency"], statement["holds_if"], statement.get("randomness")]  # the last not in older runs
    sentences = [*filter(None, known), *(f"not covered: {one}" for one in statement["not_covered"])]
    if lower is not None:
        sentences.append(lower["about"])
    if by_canaries is not None:
        sentences += by_canaries["sentences"]
    comparable = lower is not None and statement["level"] == "sample"
    return {
        "upper": statement["epsilon"],
        "delta": statement["delta"],
        "level": statement["level"],
        "accountant": statement["accountant"],
        "lower": lower["lower"] if lower is not None and comparable else None,
        "bounds": lower,
        "canaries": by_canaries,
        "sentences": sentences,
    }
