"""A parent run in MLflow for all runs of one command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config import TrackingConfig
from fedpriv.files import write_atomically
from fedpriv.tracking.access import client_of
from fedpriv.tracking.store import (
    create_store,
    default_uri,
    experiment_id,
    explaining,
    follow_move,
    quiet_mlflow,
    sqlite_path,
)
from fedpriv.untrusted.addresses import with_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

Finish = Callable[[Mapping[str, float], Path], None]
"""Logs metrics, and all files in a folder."""
_ENVIRONMENT = ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI")


@contextmanager
def parent_run(folder: Path, tracking: TrackingConfig, name: str) -> Iterator[Finish]:
    """A block whose runs, in this process or in those that it starts, get one parent run in MLflow.

    Args:
        folder: of the command; the runs are in ``runs``. ``parent.json`` names the parent run, for the next call.
        tracking: of the runs; without MLflow there is no parent, and nothing is logged.

    Raises:
        TrackingError: the store does not answer, or refuses a request.
    """
    if tracking.name != "mlflow" or tracking.uri == "none":
        yield lambda metrics, files: None
        return
    quiet_mlflow()
    uri = tracking.uri or default_uri(folder / "runs")
    if (store := sqlite_path(uri)) is not None:
        uri = f"sqlite:///{store}"
        create_store(store)
    with explaining(uri):
        client, run = _parent(folder, uri, tracking.experiment, name)
    before = {key: os.environ.get(key) for key in _ENVIRONMENT}
    # With the password, which child processes get from nowhere else.
    os.environ.update(zip(_ENVIRONMENT, (run, with_secrets(uri) or uri), strict=True))

    def finish(metrics: Mapping[str, float], files: Path) -> None:
        with explaining(uri):
            for key, value in metrics.items():
                client.log_metric(run, key, value)
            for file in sorted(path for path in files.iterdir() if path.is_file()):
                client.log_artifact(run, str(file))

    status = "FAILED"
    try:
        yield finish
        status = "FINISHED"
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
        client.set_terminated(run, status)


def _parent(folder: Path, uri: str, experiment: str, name: str) -> tuple[MlflowClient, str]:
    """A client, and the id of the parent run: that of an earlier call, or a new one."""
    from mlflow.exceptions import MlflowException

    client, file = client_of(uri), folder / "parent.json"
    follow_move(uri)
    try:
        known: Any = json.loads(file.read_text(encoding="utf-8"))
        if known["uri"] == uri and client.get_run(known["run"]).info.lifecycle_stage == "active":
            client.update_run(known["run"], status="RUNNING")
            return client, str(known["run"])
    except (OSError, ValueError, KeyError, TypeError, MlflowException):
        pass  # no earlier call, or the store was deleted
    tags = {"mlflow.source.name": "fedpriv", "mlflow.source.type": "LOCAL"}
    run = client.create_run(experiment_id(client, uri, experiment), run_name=name, tags=tags).info.run_id
    write_atomically(file, json.dumps({"uri": uri, "run": run}).encode())
    return client, str(run)
