"""Small runs on digits, and what is compared of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv.config import DataConfig, RunConfig, load_config
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import read_data
from fedpriv.files import load_json, save_json, with_checksum
from fedpriv.simulation import run
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder

SMALL: dict[str, Any] = {
    "data.limit": 500,
    "data.clients": 10,
    "model.name": "mlp",
    "model.projection": 16,
    "train.rounds": 3,
    "train.participation": 0.3,
    "train.local_epochs": 1,
    "train.batch_size": 20,
    "train.lr": 0.05,
    "executor.name": "sequential",
    "tracking.uri": "none",
}
FEW_STEPS: dict[str, Any] = {"data.limit": 120, "data.clients": 6, "train.participation": 0.5}
"""Three clients a round as in :data:`SMALL`, each with a step or two an epoch: for runs whose files matter."""
QUICK: dict[str, dict[str, Any]] = {
    "mpfedcon": {"method.head_epochs": 1},
    "fedrep": {"method.head_epochs": 1},
    "local": {"method.epochs": 2},
}
"""For methods that train long by default, less."""


def settings(method: str, **overrides: Any) -> dict[str, Any]:
    """Dotted keys of a small run; ``overrides`` too. Other data than digits have their usual net, and all of it."""
    own = {"model.name": None, "data.limit": None} if "data.name" in overrides else {}
    values = {**SMALL, **own, "method.name": method, **QUICK.get(method, {}), **overrides}
    if "method.epochs" in values:  # which is in its place
        del values["train.local_epochs"]
    return values


def config(method: str, **overrides: Any) -> RunConfig:
    return load_config(None, settings(method, **overrides))


def flags(method: str, **overrides: Any) -> list[str]:
    """The same run on the command line."""
    return [part for key, value in settings(method, **overrides).items() for part in ("--set", f"{key}={json.dumps(value)}")]


def simulation(folder: Path, method: str, warn: Any = lambda text: None, **overrides: Any) -> Simulation:
    """A run that is set up and not started."""
    federation = build(config(method, **overrides, run_dir=str(folder)))
    return Simulation(federation, RunFolder.create(federation.config, folder.parent), warn)


def play(folder: Path, method: str, **overrides: Any) -> run.Outcome:
    """A whole run, in this process."""
    return run.start(config(method, **overrides, run_dir=str(folder)), folder.parent, *SILENT)


def resume(folder: Path, warnings: list[str] | None = None) -> run.Outcome:
    lines = [] if warnings is None else warnings
    return run.resume(folder, SILENT[0], SILENT[1], lines.append)


SILENT: Any = (lambda federation, folder: None, lambda record: None, lambda text: None)


def computed(folder: Path) -> dict[str, Any]:
    """All that a run's folder says but when and where: two runs of one config agree on it, bit for bit."""
    checkpoints = folder / "checkpoints"
    tensors = ("checkpoints/*.safetensors", "clients/*", "payloads/*/*", "weights/*", "partition.safetensors")
    results: dict[str, Any] = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in tensors
        for path in folder.glob(pattern)
    }
    results["rounds"] = sorted(path.name for path in checkpoints.glob("round-*"))
    progress = json.loads((checkpoints / results["rounds"][-1]).read_text())["progress"]
    results["progress"] = {**progress, "record": _timeless(progress["record"]), "seconds": None, "cpu_seconds": None}
    results["metrics"] = [_timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    otherwise = ("run_id", "run_dir", "seconds", "cpu_seconds", "sha256")
    results["summary"] = {key: value for key, value in summary.items() if key not in otherwise}
    results["confusion"] = [json.loads(path.read_text()) for path in folder.glob("confusion.json")]
    results["strays"] = [str(path.relative_to(folder)) for path in folder.rglob("*.part")]
    return results


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: value for name, value in record["metrics"].items() if name != "seconds"}
    return {**record, "time_ms": None, "metrics": metrics, "sha256": None}


def facts(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def damage(path: Path, how: str) -> None:
    """``flipped`` (a bit in the middle), ``torn`` (after two thirds), ``empty`` or ``removed``."""
    data = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        path.write_bytes(data[: {"torn": len(data) * 2 // 3, "empty": 0}[how]])


def renew_checksums(folder: Path) -> None:
    """Make the checksums of a run's kept payloads those of the files that are there, as who forges a run would."""
    checksums = {}
    for file in folder.glob("payloads/*/SHA256SUMS"):
        digests = {name: digest for digest, name in (line.split("  ") for line in file.read_text().splitlines())}
        there = [name for name in digests if (file.parent / name).is_file()]
        digests |= {name: hashlib.sha256((file.parent / name).read_bytes()).hexdigest() for name in there}
        file.write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
        checksums[int(file.parent.name.removeprefix("round-"))] = hashlib.sha256(file.read_bytes()).hexdigest()

    def renewed(record: dict[str, Any]) -> dict[str, Any]:
        known = {"payloads": checksums[record["round"]]} if record["round"] in checksums else {}
        return {name: value for name, value in record.items() if name != "sha256"} | known

    metrics = folder / "metrics.jsonl"
    records = [with_checksum(renewed(json.loads(line))) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    for path in (folder / "checkpoints").glob("round-*.json"):
        body = load_json(path)
        body["progress"]["record"] = renewed(body["progress"]["record"])
        save_json(path, body)


def rounds_recorded(folder: Path) -> list[int]:
    """The rounds that have a whole line in ``metrics.jsonl``."""
    path = folder / "metrics.jsonl"
    return [json.loads(line)["round"] for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def read_once() -> Callable[..., Dataset]:
    """:func:`fedpriv.data.sources.read_data`, which reads the data of a config once."""
    known = dict[tuple[str, bool], Dataset]()

    def read(data: DataConfig, every_column: bool = False) -> Dataset:
        key = data.model_dump_json(), every_column
        if key not in known:
            known[key] = read_data(data, every_column)
        return known[key]

    return read
