"""Sending a run folder to MLflow: the run, its parameters, the points of its metrics, its files."""

from __future__ import annotations

import getpass
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedpriv.config import read_yaml
from fedpriv.errors import UsageError
from fedpriv.files import Damaged, load_json
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.access import client_of, same_store
from fedpriv.tracking.cursor import CURSOR, Cursor
from fedpriv.tracking.folder import audit_outcome, read_lines, read_records
from fedpriv.tracking.model import MODEL, send_model
from fedpriv.tracking.names import (
    STATUS,
    as_points,
    client_table,
    dataset_name,
    description,
    params,
    point_values,
    probe_values,
    run_name,
    summary_values,
)
from fedpriv.tracking.store import TrackingError, experiment_id, follow_move, sqlite_path
from fedpriv.untrusted.addresses import shown_address, without_secrets

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric, Run

ARTIFACTS = (
    "config.yaml", "run.json", "summary.json", "confusion.json", "metrics.jsonl", "partition.safetensors", "preprocessing.json",
    "init.safetensors", "plots/**/*", "weights/**/*", "probe/*", "audit/*",
)  # fmt: skip
_CLIENTS = "clients.json"
_WITH_ADDRESSES: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {"config.yaml": read_yaml, "run.json": load_json}
_METRICS_PER_BATCH, _PARAMS_PER_BATCH = 1000, 100  # MLflow's limits
_DATASET_ATTEMPTS = 4


@dataclass(frozen=True)
class SyncReport:
    """The result of one :func:`sync`; ``uri`` is ``None`` for a run without tracking."""

    uri: str | None
    mlflow_run_id: str | None = None
    params: int = 0
    points: int = 0
    artifacts: int = 0
    status: str | None = None


class Pass:
    """One pass over a run folder, which sends what the store does not have yet."""

    def __init__(self, run_dir: Path, facts: dict[str, Any], cursor: Cursor) -> None:
        self.run_dir, self.facts, self.cursor = run_dir, facts, cursor
        self.client = client_of(cursor.uri)
        # The status that was sent before, if it is unknown whether the run is running.
        self.status = STATUS.get(RunFolder(run_dir).status) or cursor.status_sent or "RUNNING"
        self.params = self.points = self.artifacts = 0

    def run(self) -> SyncReport:
        follow_move(self.cursor.uri)
        existing = self._existing_run()
        if existing is None:
            self._create_run()
        if self.status == "RUNNING" and self.cursor.status_sent not in (None, "RUNNING"):  # resumed
            self.client.update_run(self._id, status="RUNNING")
            self._done(status_sent="RUNNING")
        if not self.cursor.params_sent:
            self._send_params(set(existing.data.params) if existing else set())
        self._send_metrics()
        if self.status != "RUNNING":
            self._send_artifacts()
            if self.cursor.status_sent != self.status:
                self.client.set_terminated(self._id, self.status, end_time=self._end_ms())
                self._done(status_sent=self.status)
        return SyncReport(self.cursor.uri, self._id, self.params, self.points, self.artifacts, self.status)

    @property
    def _id(self) -> str:
        assert self.cursor.mlflow_run_id is not None
        return self.cursor.mlflow_run_id

    def _done(self, **progress: Any) -> None:
        for name, value in progress.items():
            setattr(self.cursor, name, value)
        self.cursor.save(self.run_dir / CURSOR)

    def _existing_run(self) -> Run | None:
        """The MLflow run of this folder; ``None``, with a new cursor, if the store has none."""
        from mlflow.exceptions import MlflowException

        if self.cursor.mlflow_run_id is not None:
            try:
                run = self.client.get_run(self._id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                self._done(**asdict(Cursor(self.cursor.uri, self.cursor.experiment)))  # the store was deleted
            else:
                if run.info.lifecycle_stage == "deleted":
                    raise TrackingError(f"the run was deleted in MLflow; remove {self.run_dir / CURSOR} to send it again")
                self._check_artifact_uri(run.info.artifact_uri)
                return run
        # The run's tag finds it if the acknowledgement of create_run was lost.
        self._done(experiment_id=experiment_id(self.client, self.cursor.uri, self.cursor.experiment))
        query = f"tags.`fedpriv.run_key` = '{quote(self._key, safe='@ ')}'"
        runs = self.client.search_runs([self.cursor.experiment_id or ""], query, max_results=1)
        if not runs:
            return None
        info = runs[0].info
        self._check_artifact_uri(info.artifact_uri)
        self._done(mlflow_run_id=info.run_id, status_sent=info.status)
        return runs[0]

    @property
    def _key(self) -> str:
        # With its time: a folder that was deleted and created again under the same name is another run.
        return f"{self.facts['run_id']}@{self.facts['created_ms']}"

    def _create_run(self) -> None:
        facts = self.facts
        tags = {
            "fedpriv.run_key": quote(self._key, safe="@ "),
            "fedpriv.run_dir": str(self.run_dir.resolve()),
            "fedpriv.partition_hash": facts.get("partition_hash"),
            "fedpriv.device": facts.get("device"),
            "mlflow.note.content": description(facts, self.run_dir),
            "mlflow.user": _user(),
            "mlflow.source.name": "fedpriv",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": facts.get("git_commit"),
        } | {f"fedpriv.version.{package}": version for package, version in (facts.get("versions") or {}).items()}
        store = without_secrets(os.environ.get("MLFLOW_TRACKING_URI", ""))  # as the cursor's
        if os.environ.get("MLFLOW_RUN_ID") and same_store(store, self.cursor.uri):
            tags["mlflow.parentRunId"] = os.environ["MLFLOW_RUN_ID"]  # started by `mlflow run`, or by `fedpriv frontier`
        run = self.client.create_run(
            self.cursor.experiment_id or "",
            start_time=facts["created_ms"],
            run_name=run_name(facts, read_yaml(self.run_dir / "config.yaml")),
            tags={key: str(value) for key, value in tags.items() if value is not None},
        )
        self._check_artifact_uri(run.info.artifact_uri)
        self._done(mlflow_run_id=run.info.run_id, status_sent="RUNNING")

    def _check_artifact_uri(self, uri: str) -> None:
        """Check that an SQLite store, which may come from elsewhere, sends artifacts to no server."""
        if sqlite_path(self.cursor.uri) is not None and not uri.startswith(("file:", "/")):
            raise TrackingError(f"{self.cursor.uri} would send artifacts to {uri.partition('?')[0]}, and not beside itself")

    def _send_params(self, known: set[str]) -> None:
        from mlflow.entities import Dataset, DatasetInput, Param

        config = read_yaml(self.run_dir / "config.yaml")
        # Parameters cannot be changed in MLflow, so existing ones stay: a resumed run may have another device.
        values = params(config) | {"data.name": self.facts["dataset"]}  # the clients' own in a deployment, whatever the config's
        fresh = [Param(key, value) for key, value in values.items() if key not in known]
        for start in range(0, len(fresh), _PARAMS_PER_BATCH):
            batch = fresh[start : start + _PARAMS_PER_BATCH]
            self.client.log_batch(self._id, params=batch)
            self.params += len(batch)
        name, digest = dataset_name(self.facts), str(self.facts.get("partition_hash") or "unknown")[:12]
        self._send_dataset(DatasetInput(Dataset(name, digest, "fedpriv", json.dumps({"name": name}))))
        self._done(params_sent=True)

    def _send_dataset(self, dataset: DatasetInput) -> None:
        """Log the data set; again if another run inserted it at the same time, between MLflow's look-up and its insertion."""
        from mlflow.exceptions import MlflowException

        for attempt in range(_DATASET_ATTEMPTS):
            try:
                self.client.log_inputs(self._id, [dataset])
                return
            except MlflowException as error:
                if attempt == _DATASET_ATTEMPTS - 1 or error.error_code not in ("INTERNAL_ERROR", "BAD_REQUEST"):
                    raise

    def _send_metrics(self) -> None:
        # A file that was repaired has one line a round, and may be shorter than before.
        records, lines = read_lines(self.run_dir, skip=min(self.cursor.lines_sent, self.cursor.last_round + 1))
        # A resumed run may write a round again: the later line counts, unless the record was sent.
        fresh = {record["round"]: record for record in records if record["round"] > self.cursor.last_round}
        batch: list[Metric] = []
        for number, record in sorted(fresh.items()):
            points = as_points(point_values(record), record["time_ms"], number)
            if batch and len(batch) + len(points) > _METRICS_PER_BATCH:
                self._log(batch)
                self._done(last_round=batch[-1].step)
                batch = []
            batch += points
        self._log(batch)
        self._done(last_round=max([self.cursor.last_round, *fresh]), lines_sent=lines)

    def _log(self, points: list[Metric]) -> None:
        for start in range(0, len(points), _METRICS_PER_BATCH):
            self.client.log_batch(self._id, metrics=points[start : start + _METRICS_PER_BATCH])
        self.points += len(points)

    def _send_artifacts(self) -> None:
        sent, root = self.cursor.artifacts_sent, self.run_dir.resolve()
        for path in sorted({path for pattern in ARTIFACTS for path in self.run_dir.glob(pattern) if path.is_file()}):
            name, stamp = path.relative_to(self.run_dir), f"{path.stat().st_size}-{path.stat().st_mtime_ns}"
            if sent.get(name.as_posix()) == stamp:
                continue
            if name.as_posix() == MODEL and not (self.run_dir / "summary.json").exists():
                continue  # the run was stopped while it wrote its results, and writes them again when it is resumed
            if not path.resolve().is_relative_to(root):
                raise UsageError(f"{path} is a symbolic link out of the run folder, which is not followed")
            if name.as_posix() in _WITH_ADDRESSES and _holds_password(path):
                raise UsageError(f"{path} holds the password of a tracking URI, which is not sent: write *** in its place")
            if name.name == "summary.json":
                summary = load_json(path)
                self._log(as_points(summary_values(summary), self._end_ms(), int(summary.get("rounds", 0))))
                self._send_table(client_table(read_records(self.run_dir)))
            if name.as_posix() == "audit/audit.json":
                answer, metrics = audit_outcome(self.run_dir)
                values = {f"audit/{name}": value for name, value in metrics.items()}
                self._log(as_points(self._previous_audit() | values, int(time.time() * 1000), 0))
                if answer is not None:
                    self.client.set_tag(self._id, "fedpriv.audit", answer)
            if name.parts[0] == "probe":
                self._log(as_points(probe_values(load_json(path)), int(time.time() * 1000), 0))
            if name.as_posix() == MODEL:
                self._send_model(path)
            else:
                self.client.log_artifact(self._id, str(path), name.parent.as_posix() if name.parent.parts else None)
            self.artifacts += 1
            self._done(artifacts_sent=sent | {name.as_posix(): stamp})
            sent = self.cursor.artifacts_sent

    def _previous_audit(self) -> dict[str, float]:
        """The metrics of previous audits, as NaN: a metric that the new audit does not have must not keep its previous value."""
        logged = self.client.get_run(self._id).data.metrics
        return {name: math.nan for name in logged if name.startswith("audit/")}

    def _send_model(self, path: Path) -> None:
        run, summary = self.client.get_run(self._id), load_json(self.run_dir / "summary.json")
        if not summary.get("model"):
            raise Damaged(f"{path} is not what fedpriv writes: summary.json does not say what it is")
        self._check_artifact_uri(self.client.get_experiment(run.info.experiment_id).artifact_location)
        send_model(self.client, run, path, self.facts, summary)

    def _send_table(self, table: dict[str, Any] | None) -> None:
        """Write a table as MLflow's ``log_table`` does, but without appending it to an existing one."""
        if table is not None:
            self.client.log_dict(self._id, table, _CLIENTS)
            self.client.set_tag(self._id, "mlflow.loggedArtifacts", json.dumps([{"path": _CLIENTS, "type": "table"}]))

    def _end_ms(self) -> int:
        """Time of the last record (ms), so that a late sync does not change the run's duration."""
        records = read_records(self.run_dir)
        return int(records[-1]["time_ms"] if records else self.facts["created_ms"])


def _holds_password(path: Path) -> bool:
    """Whether a file of the run, which may come from elsewhere, contains the password of a tracking URI."""
    text, tracking = path.read_text(encoding="utf-8"), _WITH_ADDRESSES[path.name](path).get("tracking")
    uri = str(tracking.get("uri")) if isinstance(tracking, Mapping) else ""
    return without_secrets(text) != text or shown_address(uri) != uri


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user of a container may have no name
        return None
