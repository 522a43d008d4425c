"""The names of a run's values in MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config import RunConfig, read_yaml
from fedpriv.evaluation.protocols import best, worst_tenth
from fedpriv.scores.catalogue import SCORES
from fedpriv.storage.records import Record
from fedpriv.tracking.folder import flatten

if TYPE_CHECKING:
    from mlflow.entities import Metric


SECTIONS = {
    **{score: f"{score}/mean" for score in SCORES},
    "bytes_up": "bytes/up",
    "bytes_down": "bytes/down",
    "total_bytes_up": "bytes/total_up",
    "total_bytes_down": "bytes/total_down",
    "train_loss": "loss/train",
    "test_loss": "loss/test",
    "epsilon": "privacy/epsilon",
    "clipped": "privacy/clipped",
}
"""Metric of a round -> its name in MLflow, whose dashboard groups charts by the prefix before a slash, sorted by name."""
ALWAYS = (
    "method.name", "data.name", "data.clients", "data.partition.name", "model.name", "train.rounds", "train.local_epochs",
    "train.batch_size", "train.lr", "seed",
)  # fmt: skip
"""Config keys that are parameters of every run. Others are if they differ from the defaults."""
_ELSEWHERE = ("run_dir", "tracking", "plugins", "executor", "wire.transforms", "wire.secure_aggregation")
"""Config keys that are no parameters: where records go, how clients are run, and what :func:`defence` describes."""
_NOT_COMPARED = (
    "seed", "rounds", "averaged_rounds", "tested_from", "payloads.files", "protocols.last_rounds_client_mean",
    "protocols.worst_tenth", "protocols.best_client", "scores.accuracy.mean", "scores.accuracy.worst_tenth",
    "scores.accuracy.best",
)  # fmt: skip
"""Numbers of a summary that need no chart: bookkeeping, and duplicates."""
_SUMMARY = re.compile(rf"^({'|'.join(SCORES)})_")
STATUS = {"running": "RUNNING", "finished": "FINISHED", "interrupted": "KILLED", "killed": "KILLED", "failed": "FAILED"}


def point_values(record: Record) -> dict[str, float]:
    """Metrics of a round for MLflow: the totals, and the spread over clients."""
    values = _numbers(record["metrics"])
    for name, per_client in (record.get("per_client") or {}).items():
        _add_spread(values, name, per_client)
    return {_section(key): value for key, value in values.items()}


def client_table(records: Sequence[Record]) -> dict[str, Any] | None:
    """The last evaluation of each client, in the form of MLflow's tables; ``None``: clients were not evaluated."""
    last = next((record["per_client"] for record in reversed(records) if record.get("per_client")), None)
    if last is None:
        return None
    clients = range(max(map(len, last.values())))
    return {"columns": ["client", *last], "data": [[i, *(values[i] for values in last.values())] for i in clients]}


def run_name(facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """``mpfedcon · digits · s0``, with changed options (``mpfedcon:mu=5``) and defences: legends of charts show nothing else."""
    defended = defence(config)
    method = _with_options(facts["method"], facts.get("changed_options") or {})
    parts = [method, dataset_name(facts), f"s{facts['seed']}", *([] if defended == "none" else [defended])]
    return " · ".join(parts)


def description(facts: Mapping[str, Any], run_dir: Path) -> str:
    """A note on the run (Markdown), with the command that repeats it."""
    about = read_yaml(run_dir / "config.yaml").get("about") or {}
    named = {"": about.get("title"), "Owner: ": about.get("owner"), "Data: ": about.get("data")}
    return "".join(f"{name}{text}\n\n" for name, text in named.items() if text is not None) + (
        f"{facts['method']} on {dataset_name(facts)}, seed {facts['seed']}. To run it again, with the artifact `config.yaml`:\n\n"
        f"    fedpriv train --config config.yaml\n\nOn its own machine: `fedpriv audit {run_dir.resolve()}`"
    )


def params(config: Mapping[str, Any]) -> dict[str, str]:
    """Parameters for MLflow: the few config keys that a comparison of runs needs; ``config.yaml``, an artifact, has all."""
    defaults = dict(flatten(RunConfig().model_dump(mode="json")))
    values = {"defence": defence(config)}
    for key, value in flatten(config):
        if key == "data.partition.seed" and value == config.get("seed"):  # the default
            continue
        left_out = any(key == prefix or key.startswith(f"{prefix}.") for prefix in _ELSEWHERE)
        if not left_out and (key in ALWAYS or key.startswith("method.") or value != defaults.get(key)):
            values[key] = value if isinstance(value, str) and value else json.dumps(value)
    return values


def defence(config: Mapping[str, Any]) -> str:
    """The defences of a run as ``fedpriv frontier --defenses`` takes them, or ``none``."""
    wire, privacy = config.get("wire") or {}, config.get("privacy") or {}
    parts = []
    for transform in wire.get("transforms") or ():
        options = {name: value for name, value in transform.items() if name != "name"}
        parts.append(_with_options(transform["name"], options))
    if wire.get("secure_aggregation"):
        parts.append("secure-aggregation")
    if privacy.get("level", "none") != "none":
        key = "target_epsilon" if privacy.get("target_epsilon") is not None else "noise"
        parts.append(f"dp-{privacy['level']}:{key}={privacy.get(key)}")
    return "+".join(parts) or "none"


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    return ":".join([name, *([",".join(f"{key}={value}" for key, value in options.items())] if options else [])])


def summary_values(summary: dict[str, Any]) -> dict[str, float]:
    """Metrics of ``summary.json`` for MLflow, under ``final/``, to sort tables of runs by."""
    values = _numbers({key: value for key, value in flatten(summary) if key not in _NOT_COMPARED})
    _add_spread(values, "accuracy", summary.get("accuracy_per_client") or [])
    return {f"final/{key}": value for key, value in values.items()}


def probe_values(row: dict[str, Any]) -> dict[str, float]:
    """Metrics of a probe of a finished run for MLflow: ``probe/<data set> <share of the labels>`` and the like."""
    name = f"{row['dataset']} {row['fraction']:g}" + ("" if row["features"] == "pooled" else f" {row['features']}")
    values = {f"probe/{name}": row["accuracy"], f"probe_as_is/{name}": row["accuracy_as_is"]}
    values[f"probe_logistic/{name}"] = row["accuracy_logistic"]
    return {key: float(value) for key, value in values.items() if value is not None}


def _section(key: str) -> str:
    return SECTIONS.get(key) or _SUMMARY.sub(r"\1/", key)


def _add_spread(values: dict[str, float], name: str, per_client: list[float | None]) -> None:
    if (score := SCORES.get(name)) is None:
        return
    for statistic, value in (("worst_tenth", worst_tenth(per_client, score)), ("best", best(per_client, score))):
        if value is not None:
            values.setdefault(f"{name}_{statistic}", value)


def dataset_name(facts: Mapping[str, Any]) -> str:
    """The data set's name; for a path, its last part."""
    return Path(facts["dataset"]).name


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if isinstance(value, int | float)}


def as_points(values: dict[str, float], time_ms: int, step: int) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(re.sub(r"[^\w.\-/ :]", "_", key), value, time_ms, step) for key, value in values.items()]
