"""The folder of a run, which is its truth: config, partition, metrics, checkpoints, results."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, parse, read_yaml
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import load_json, save_json, write_atomically
from fedpriv.plugins import load_plugins

PACKAGES = ("fedpriv", "torch", "torchvision", "numpy", "datasets", "flwr-datasets", "safetensors", "mlflow", "opacus")


class RunFolder:
    """Paths and records of one run.

    ``config.yaml``, ``run.json`` (what it is and how it stands), ``partition.safetensors``, ``metrics.jsonl`` (a line a
    round), ``checkpoints/`` (of the server), ``clients/`` (what the clients keep, which a server would not have),
    ``payloads/`` (what crossed the wire, as much of it as ``wire.keep_payloads`` says), and at the end ``summary.json``,
    ``confusion.json`` (where there is a global model), ``weights/``, ``plots/``, ``profile/`` (where that was requested);
    after it ``probe/``, where it was probed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.partition_file = path / "partition.safetensors"
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.payloads = path / "payloads"
        self.weights = path / "weights"
        self.plots = path / "plots"
        self.confusion_file = path / "confusion.json"
        self.probe = path / "probe"
        self.profile = path / "profile"
        self._facts_file = path / "run.json"
        self._metrics_file = path / "metrics.jsonl"
        self._summary_file = path / "summary.json"
        self._lock_file = path / ".run.lock"
        self._last_recorded: int | None = None

    @classmethod
    def create(cls, config: RunConfig, runs_dir: Path) -> RunFolder:
        """Make the folder of a new run.

        Raises:
            UsageError: it cannot be written, or holds a run already.
        """
        path = config.run_dir or runs_dir / default_name(config)
        folder = cls(path.absolute())
        try:
            if folder.config_file.exists():
                hint = f"`fedpriv resume {path}` continues it, --run-dir names another folder"
                raise UsageError(f"{path} holds a run already; {hint}")
            if any(path.glob("*/config.yaml")):
                raise UsageError(f"{path} holds other runs; --run-dir names the folder of this run alone, such as {path / 'new'}")
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            # Without its own place: the file can start another run.
            write_atomically(folder.config_file, config.model_copy(update={"run_dir": None}).to_yaml().encode())
        except OSError as error:
            raise UsageError(f"cannot write the run folder {path}: {error.strerror}; --run-dir names another") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run; :class:`UsageError` where there is none."""
        folder = cls(path.absolute())
        if not folder.config_file.exists():
            raise UsageError(f"{path} holds no run (no config.yaml)")
        return folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no other process plays this run; :class:`UsageError` where one does."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self._lock_file, timeout=0):
                yield
        except Timeout:
            raise UsageError(f"another process is running the run in {self.path}") from None
        except PermissionError as error:
            if error.filename != str(self._lock_file):
                raise
            raise UsageError(f"cannot write in {self.path}: {error.strerror}") from None

    def config(self) -> RunConfig:
        """The run's config as stored."""
        config = parse(RunConfig, read_yaml(self.config_file), f"config {self.config_file}")
        load_plugins(config.plugins, of=str(self.config_file))
        return config

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of ``run.json``."""
        return dict(load_json(self._facts_file)) if self._facts_file.exists() else {}

    def update_facts(self, **facts: Any) -> None:
        """Change some of what ``run.json`` says."""
        save_json(self._facts_file, {**self.facts, **facts})

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a torn last line (the process was killed) is not one."""
        if not self._metrics_file.exists():
            return []
        *lines, _torn = self._metrics_file.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def append(self, record: dict[str, Any]) -> None:
        """Add the line of a round, unless it is there already (the run was killed after writing it)."""
        if self._last_recorded is None:
            self._last_recorded = max((known["round"] for known in self.records()), default=-1)
        if self._last_recorded >= record["round"]:
            return
        with self._metrics_file.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._last_recorded = record["round"]

    def mend(self) -> None:
        """Cut off a torn last line, so that what is appended stands on a line of its own."""
        if self._metrics_file.exists():
            data = self._metrics_file.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                write_atomically(self._metrics_file, whole)

    def summary(self) -> dict[str, Any] | None:
        """The contents of ``summary.json``, if the run is finished."""
        return dict(load_json(self._summary_file)) if self._summary_file.exists() else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        save_json(self._summary_file, summary)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A block that writes into the folder; a disk that is full becomes a :class:`FedprivError` that says how to go on."""
        try:
            yield
        except OSError as error:
            cwd = Path.cwd()
            path = self.path.relative_to(cwd) if self.path.is_relative_to(cwd) else self.path
            raise FedprivError(
                f"cannot write {what} in {path}: {error.strerror}; "
                f"what was written before is whole: make room, then `fedpriv resume {path}`"
            ) from None


def default_name(config: RunConfig) -> str:
    """``<date>-<time>-<method>-<data>-s<seed>-<tag>``."""
    data = Path(config.data.name).name
    tag = os.urandom(2).hex()
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{config.called}-{data}-s{config.seed}-{tag}"


def first_facts(config: RunConfig, folder: RunFolder, partition_hash: str, tracking_uri: str) -> dict[str, Any]:
    """The facts of a run before its first round."""
    return {
        "run_id": folder.path.name,
        "method": config.called,
        "dataset": config.data.name,
        "seed": config.seed,
        "created_ms": int(time.time() * 1000),
        "status": "running",
        "versions": {name: version(name) for name in PACKAGES},
        "git_commit": git_commit(),
        "partition_hash": partition_hash,
        "config_fingerprint": config.fingerprint(),
        "device": config.device,
        "tracking": {"name": config.tracking.name, "uri": tracking_uri, "experiment": config.tracking.experiment},
    }


def git_commit() -> str | None:
    """The commit of the working folder, with ``-dirty`` where it was changed; ``None`` outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
