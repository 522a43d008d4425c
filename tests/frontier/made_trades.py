"""Points of a frontier that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.conditions import Condition, conditions
from fedpriv.frontier.decision import Trade
from fedpriv.frontier.result import Frontier


def read_target(text: str) -> tuple[Condition, ...]:
    """Conditions of a target; of an empty text, none."""
    return tuple(conditions(text, "--target")) if text else ()


def make_trade(
    label: str,
    accuracy: float | None = 0.9,
    recovered: float | None = 0.0,
    bytes: int = 10,
    auc: float | None = None,
    unmet: str = "",
    **changes: Any,
) -> Trade:
    """A trade of fedavg with a defence of this name; so much was recovered of 100 samples."""
    values: dict[str, Any] = {
        "label": label, "method": "fedavg", "defence": label, "seed": 0, "accuracy": accuracy, "accuracy_interval": None,
        "at_chance": False, "recovered": None if recovered is None else wilson(round(100 * recovered), 100), "most_open": None,
        "leakage": {"recovered": recovered, "membership_auc": auc, "epsilon": None}, "bytes": bytes, "answer": "words",
        "unmet": read_target(unmet),
    }  # fmt: skip
    return Trade(**values | changes)


def make_frontier(*trades: Trade, target: str = "recovered<=0.05", best: Sequence[str] = (), **changes: Any) -> Frontier:
    """A frontier on seed 0; ``best``: labels of the Pareto-optimal points."""
    values: dict[str, Any] = {
        "command": "fedpriv frontier", "seconds": 1.0, "target": read_target(target), "seed": 0, "config_defences": (),
        "trades": trades, "not_run": {}, "searches": (), "pareto_optimal": tuple(best), "chosen": None, "confirmations": (),
        "nearest": None,
    }  # fmt: skip
    return Frontier(**values | changes)
