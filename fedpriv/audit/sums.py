"""Each attack on what a server with secure aggregation sees, beside the same on the uploads behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedpriv.audit.membership.verdict import NO_RULE
from fedpriv.audit.verdict import LIMIT

Found = Mapping[str, Any]
Measured = dict[str, dict[str, Any]]
"""By attack: ``value``, and ``n`` that it is of."""


def compared(sums: Found, alone: Found) -> list[dict[str, Any]]:
    """Rows of a table, ``{measure, attack, with, without}``; ``None``: the attack was not mounted there.

    Args:
        sums: findings on the sums; ``alone``: on the single uploads.
    """
    rows = []
    for measure, read in _MEASURES.items():
        behind, single = read(sums), read(alone)
        for attack in dict.fromkeys((*behind, *single)):
            rows.append({"measure": measure, "attack": attack, "with": behind.get(attack), "without": single.get(attack)})
    return rows


def _images(found: Found) -> Measured:
    rates = [
        (one["attacker"], one["success"][LIMIT]["successes"], one["success"][LIMIT]["n"])
        for attack in found["attacks"]
        if attack["kind"] == "message"
        for one in attack["attempts"]
        if not one.get("inapplicable")
    ]
    return _pooled(rates)


def _texts(found: Found) -> Measured:
    recalls = [
        (one["attacker"], one["recall"] * read["texts"], read["texts"])
        for read in found["texts"]
        if read["kind"] == "message"
        for one in read["attempts"]
        if not one.get("inapplicable") and one["recall"] is not None
    ]
    return _pooled(recalls)


def _labels(found: Found) -> Measured:
    return _pooled((one["how"], one["exact"], 1) for one in found["labels"] if one["how"] != NO_RULE)


def _membership(found: Found) -> Measured:
    return {one["attack"]: {"value": one["auc"], "n": one["members"]} for one in found["membership"]}


def _pooled(hits: Iterable[tuple[str, float, int]]) -> Measured:
    """Over the messages: (attack, how many it found, of how many)."""
    totals: dict[str, tuple[float, int]] = {}
    for name, found, of in hits:
        before = totals.get(name, (0.0, 0))
        totals[name] = before[0] + found, before[1] + of
    return {name: {"value": found / of, "n": of} for name, (found, of) in totals.items() if of}


_MEASURES: Mapping[str, Callable[[Found], Measured]] = {
    "images recovered": _images,
    "words of texts found": _texts,
    "sets of classes found exactly": _labels,
    "membership AUC (0.5: guessing)": _membership,
}
