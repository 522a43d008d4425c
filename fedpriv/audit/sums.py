"""Each attack on what a server with secure aggregation sees, beside the same on the uploads behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.verdict import LIMIT

Found = Mapping[str, Any]
Measured = dict[str, dict[str, Any]]
"""By attack: ``value``, its 95 % interval from ``low`` to ``high``, and ``n``, the number of samples (of labels: of messages)."""


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
    return _pooled(
        (one["attacker"], one["success"][LIMIT]["successes"], one["success"][LIMIT]["n"])
        for attack in found["attacks"]
        if attack["kind"] == "message"
        for one in attack["attempts"]
        if not one.get("inapplicable")
    )


def _texts(found: Found) -> Measured:
    return _pooled(
        (one["attacker"], one["exact"]["successes"], one["exact"]["n"])
        for read in found["texts"]
        if read["kind"] == "message"
        for one in read["attempts"]
        if not one.get("inapplicable") and one["exact"]
    )


def _labels(found: Found) -> Measured:
    return _pooled((one["rule"], one["exact"]["successes"], one["messages"]) for one in found["label_rules"] if one["exact"])


def _membership(found: Found) -> Measured:
    return {
        f"{one['attack'].partition(' (')[0]}, round {one['round']}": {
            "value": one["auc"],
            "low": one["auc_low"],
            "high": one["auc_high"],
            "n": one["members"],
        }
        for one in found["membership"]
    }


def _pooled(hits: Iterable[tuple[str, int, int]]) -> Measured:
    """Over the messages: (attack, how many it found, of how many)."""
    totals: dict[str, tuple[int, int]] = {}
    for name, found, of in hits:
        before = totals.get(name, (0, 0))
        totals[name] = before[0] + found, before[1] + of
    rates = {name: wilson(found, of) for name, (found, of) in totals.items() if of}
    return {name: {"value": one.share, "low": one.low, "high": one.high, "n": one.n} for name, one in rates.items()}


_MEASURES: Mapping[str, Callable[[Found], Measured]] = {
    "images recovered": _images,
    "texts recovered word by word": _texts,
    "sets of classes found exactly": _labels,
    "membership AUC (0.5: guessing)": _membership,
}
