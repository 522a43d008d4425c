"""Fake run folders, laid out as the round loop lays them out."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import yaml


def line(
    number: int, *, level: float = 0.9, clients: int = 4, every: int = 5, start_ms: int = 1_700_000_000_000, seed: int = 0
) -> dict[str, Any]:
    """The record of one round of a run whose accuracy tends to ``level``."""
    draw = random.Random(f"{seed}/{number}")
    record: dict[str, Any] = {
        "round": number,
        "time_ms": start_ms + 2_000 * number,
        "metrics": {
            "bytes_up": 80_000 if number else 0,
            "bytes_down": 80_000 if number else 120_000,
            "total_bytes_up": 80_000 * number,
            "total_bytes_down": 120_000 + 80_000 * number,
            "seconds": 2.0,
        },
    }
    if number:
        record["metrics"]["train_loss"] = 2.3 * math.exp(-number / 10) + 0.05 * draw.random()
    if number % every == 0:
        base = level * (1 - math.exp(-(number + 1) / 6))
        accuracies = [min(1.0, max(0.0, base + draw.gauss(0, 0.06))) for _ in range(clients)]
        record["metrics"]["accuracy"] = sum(accuracies) / clients
        record["metrics"]["test_loss"] = 1 - record["metrics"]["accuracy"]
        record["per_client"] = {"accuracy": accuracies}
    return record


def make_run(
    runs_dir: Path,
    name: str = "2026-01-02-mpfedcon-digits-s0-ab12",
    *,
    method: str = "mpfedcon",
    dataset: str = "digits",
    seed: int = 0,
    rounds: int = 20,
    clients: int = 4,
    level: float = 0.9,
    status: str = "finished",
    uri: str | None = None,
    about: dict[str, str | None] | None = None,
    **settings: Any,
) -> Path:
    """Write a run folder with ``rounds`` rounds and return it."""
    folder = runs_dir / name
    (folder / "plots").mkdir(parents=True)
    (folder / "weights").mkdir()
    (folder / "checkpoints").mkdir()
    config = {
        "method": {"name": method, "mu": 5},
        "data": {"name": dataset, "clients": clients, "partition": {"name": "classes", "alpha": 0.5}},
        "train": {"rounds": max(1, rounds), "lr": 0.01},
        "wire": {"transforms": [{"name": "clip", "norm": 1.0}]},
        "tracking": {"name": "mlflow", "uri": uri, "experiment": "fedpriv"},
        "seed": seed,
        "run_dir": None,
        "about": about or {},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    records = [line(number, level=level, clients=clients, seed=seed, **settings) for number in range(rounds + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    set_status(folder, "running", run_id=f"id-{name}", method=method, dataset=dataset, seed=seed, uri=uri)
    (folder / "partition.safetensors").write_bytes(b"partition")
    (folder / "plots" / "learning_curve.png").write_bytes(b"png")
    (folder / "weights" / "global.safetensors").write_bytes(b"weights")
    (folder / "checkpoints" / "last.safetensors").write_bytes(b"checkpoint")
    if status == "finished":
        last = [record for record in records if "per_client" in record][-1]
        summary = {
            "run_id": f"id-{name}",
            "method": method,
            "dataset": dataset,
            "seed": seed,
            "rounds": rounds,
            "accuracy": last["metrics"]["accuracy"],
            "accuracy_per_client": last["per_client"]["accuracy"],
            "bytes_up": records[-1]["metrics"]["total_bytes_up"],
            "bytes_down": records[-1]["metrics"]["total_bytes_down"],
            "seconds": 2.0 * rounds,
            "run_dir": str(folder),
            "protocols": {"personal": {"accuracy": 0.91, "clients": clients}},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    set_status(folder, status)
    return folder


def set_status(folder: Path, status: str, **facts: Any) -> None:
    """Change ``run.json`` as the loop does."""
    path = folder / "run.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    uri = facts.pop("uri", old.get("tracking", {}).get("uri"))
    new = {
        "created_ms": 1_700_000_000_000,
        "versions": {"torch": "2.9.0", "fedpriv": "0.1.0"},
        "git_commit": "0123abc",
        "partition_hash": "c0ffee",
        "device": "cpu",
        "tracking": {"name": "mlflow", "uri": uri, "experiment": "fedpriv"},
    }
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(new | old | facts | {"status": status}))
    draft.replace(path)


def append(folder: Path, record: dict[str, Any], *, torn: bool = False) -> None:
    """Append a line, or the first half of one as a killed process leaves it."""
    text = json.dumps(record) + "\n"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text[: len(text) // 2] if torn else text)
