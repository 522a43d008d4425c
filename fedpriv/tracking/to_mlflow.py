"""The tracker that sends runs to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedpriv.errors import UsageError
from fedpriv.tracking.access import permitted_store, whole_address
from fedpriv.tracking.folder import read_run
from fedpriv.tracking.mirror import sync
from fedpriv.tracking.sending import SyncReport
from fedpriv.tracking.store import check_server, quiet_mlflow
from fedpriv.tracking.trackers import Tracker, register
from fedpriv.untrusted.addresses import keep_secrets

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


@register("mlflow")
class MlflowTracker(Tracker):
    """MLflow: an SQLite store beside the run folders, or a tracking server."""

    uses: ClassVar[frozenset[str]] = frozenset({"uri", "experiment", "system_metrics", "log_model", "wait"})
    own_process: ClassVar[bool] = True

    def __init__(self, run_dir: Path, uri: str, experiment: str) -> None:
        super().__init__(run_dir, keep_secrets(uri), experiment)
        self._monitor: SystemMetricsMonitor | None = None
        self._reached = False
        # Not in the background thread: changing the environment while other threads read it is not safe.
        quiet_mlflow()

    def copy(self) -> None:
        if not self._reached:
            check_server(self.uri)
            self._reached = True
        report = sync(self.run_dir, self.uri, self.experiment)
        wanted = read_run(self.run_dir)["tracking"].get("system_metrics")
        if wanted and self._monitor is None and report.status == "RUNNING":
            self._monitor = _monitor(report)

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()  # type: ignore[no-untyped-call]

    @property
    def place(self) -> str:
        return f"MLflow, experiment {self.experiment!r} at {self.uri}"

    @property
    def later(self) -> str:
        option = ""
        try:
            permitted_store(self.run_dir, self.uri)
        except UsageError:  # a store other than the user's own
            option = f" --tracking-uri {self.uri}"
        return f"`fedpriv sync {self.run_dir}{option}` sends them later"


def _monitor(report: SyncReport) -> SystemMetricsMonitor:
    """Start MLflow's thread that samples this machine's load, which is in no record of the folder."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    assert report.uri is not None
    monitor = SystemMetricsMonitor(report.mlflow_run_id, resume_logging=True, tracking_uri=whole_address(report.uri))  # type: ignore[no-untyped-call]
    monitor.start()  # type: ignore[no-untyped-call]
    return monitor
