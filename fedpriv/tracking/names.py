"""The names of a run's values in MLflow."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.evaluation.protocols import best, worst_tenth
from fedpriv.server.records import Record
from fedpriv.tracking.folder import flatten

if TYPE_CHECKING:
    from mlflow.entities import Metric

MAX_CLIENTS = 200  # per-client curves beyond this many drown the dashboard; metrics.jsonl, an artifact, has them all
# The dashboard groups charts by the prefix before a slash, sorted by name, and shows the rest last. So the most important metrics
# have prefixes that come first, and the many charts of clients come last.
SECTIONS = {
    "accuracy": "accuracy/mean",
    "bytes_up": "bytes/up",
    "bytes_down": "bytes/down",
    "total_bytes_up": "bytes/total_up",
    "total_bytes_down": "bytes/total_down",
    "train_loss": "loss/train",
    "epsilon": "privacy/epsilon",
    "clipped": "privacy/clipped",
}
STATUS = {"running": "RUNNING", "finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def point_values(record: Record) -> dict[str, float]:
    """MLflow's metrics of one round: the totals, each client's, and the spread over clients."""
    values = _numbers(record["metrics"])
    clients: dict[str, float] = {}
    for name, per_client in (record.get("per_client") or {}).items():
        _add_spread(values, name, per_client)
        if len(per_client) <= MAX_CLIENTS:
            width = len(str(len(per_client) - 1))  # zero-padded, because the dashboard sorts names as text
            clients |= {f"per_client_{name}/{i:0{width}d}": float(v) for i, v in enumerate(per_client) if v is not None}
    return {_section(key): value for key, value in values.items()} | clients


def summary_values(summary: dict[str, Any]) -> dict[str, float]:
    """MLflow's metrics from ``summary.json``, under ``final/``, for sorting tables of runs."""
    values = _numbers({key: value for key, value in flatten(summary) if key not in ("seed", "rounds")})
    _add_spread(values, "accuracy", summary.get("accuracy_per_client") or [])
    return {f"final/{key}": value for key, value in values.items()}


def audit_values(audit: dict[str, Any], run_id: str) -> dict[str, float]:
    """MLflow's metrics from ``audit.json``, under ``audit/``: the leakage, for a table of runs."""
    values: dict[str, float | None] = {}
    for run in audit["runs"]:
        if run["run_id"] != run_id:
            continue
        for kind, most in run["best"].items():
            values[f"recovered_from_{kind.replace(' ', '_')}"] = most and most["success"]["share"]
        for kind, read in (run.get("best_of_texts") or {}).items():
            place = kind.replace(" ", "_")
            values[f"token_recall_from_{place}"] = read and read["recall"]
            values[f"token_precision_from_{place}"] = read and read["precision"]
            values[f"exact_texts_from_{place}"] = read and read["exact"] and read["exact"]["share"]
        if run["labels"]:
            values["labels_exact"] = sum(one["exact"] for one in run["labels"]) / len(run["labels"])
        values["membership_auc"] = max((one["auc"] for one in run["membership"]), default=None)
    return {f"audit/{key}": float(value) for key, value in values.items() if value is not None}


def probe_values(row: dict[str, Any]) -> dict[str, float]:
    """MLflow's metrics from a probe of a finished run, under ``probe/``: accuracy by data set and share of the labels."""
    name = f"{row['dataset']} {row['fraction']:g}" + ("" if row["features"] == "pooled" else f" {row['features']}")
    values = {f"probe/{name}": row["accuracy"], f"probe_as_is/{name}": row["accuracy_as_is"]}
    values[f"probe_logistic/{name}"] = row["accuracy_logistic"]
    return {key: float(value) for key, value in values.items() if value is not None}


def _section(key: str) -> str:
    return SECTIONS.get(key) or re.sub(r"^accuracy_", "accuracy/", key)


def _add_spread(values: dict[str, float], name: str, per_client: list[float | None]) -> None:
    for statistic, value in (("worst_tenth", worst_tenth(per_client)), ("best", best(per_client))):
        if value is not None:
            values.setdefault(f"{name}_{statistic}", value)


def dataset_name(facts: dict[str, Any]) -> str:
    return Path(facts["dataset"]).name  # it may be the path of a folder


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if isinstance(value, int | float)}


def as_points(values: dict[str, float], time_ms: int, step: int) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(re.sub(r"[^\w.\-/ :]", "_", key), value, time_ms, step) for key, value in values.items()]


def param_value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
