"""What attacks and the run's own records say, as JSON: parts of ``audit.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fedpriv.audit.cost import cost, signal_to_noise
from fedpriv.audit.evidence.leaving import conditions, crossed, knowledge
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.text.verdict import best_reading, most_exact, naming_words
from fedpriv.audit.verdict import best_attempt, beyond_copies, counted
from fedpriv.server.sampling import participants

Found = Mapping[str, Any]


def _a_round(evidence: Evidence) -> int:
    """How many clients take part in a round: of a schedule, on average."""
    config, agreement = evidence.config, evidence.federation.agreement
    if config.train.selection not in ("all", "schedule"):
        return config.participants_of(len(agreement.trainable))
    return round(mean(len(participants(agreement, number)) for number in range(1, config.train.rounds + 1)))


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
        "participants": _a_round(evidence),
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
    """The attempt on texts that found most tokens, of a kind: ``message`` or ``single text``.

    ``exact``: of all attempts of the kind, the largest rate of sentences found word for word.
    """
    tried = [(read, best) for read in texts if read["kind"] == kind and (best := best_reading(read) or naming_words(read))]
    if not tried:
        return None
    read, best = max(tried, key=lambda pair: pair[1]["recall"])
    figures = {name: best[name] for name in ("attacker", "recall", "precision")} | {"exact": most_exact(texts, kind)}
    return figures | {"target": read["target"], "guess": read["baseline"]["recall"]}


def known_members(attacks: Sequence[Found], texts: Sequence[Found]) -> list[dict[str, Any]]:
    """The messages from which training samples were reconstructed, which are thereby known members.

    For each message, the result of the best attacker; others may have found other samples. Images count where they are more than
    copies of the nearest public image would count for, as what such a copy is near to may well be no member.

    Args:
        attacks, texts: as in the findings of a run. Only real messages count, not those that the audit simulated.
    """
    found = []
    for attack in attacks:
        if (closer := beyond_copies(attack)) is not None:
            found += _known(attack, "images", closer[0]["attacker"], closer[0]["success"][closer[1]])
    for read in texts:
        if (best := best_reading(read)) is not None and best["exact"]:
            found += _known(read, "texts", best["attacker"], best["exact"])
    return found


def _known(target: Found, what: str, attacker: str, known: Found) -> list[dict[str, Any]]:
    if target["kind"] != "message" or not known["successes"]:
        return []
    return [{"round": target["round"], "client": target["client"], "what": what, "attacker": attacker, "known": dict(known)}]


def distinct(controls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The distinct controls; those that differ in their cost alone are equal."""
    return list({(one["attacker"], one["name"], one["sentence"]): one for one in controls}.values())


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
