"""The tracker that sends runs to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fedpriv.errors import UsageError
from fedpriv.outside.addresses import keep_secrets
from fedpriv.tracking.access import permitted_store
from fedpriv.tracking.mirror import sync
from fedpriv.tracking.store import quiet_mlflow
from fedpriv.tracking.trackers import Tracker, register


@register("mlflow")
class MlflowTracker(Tracker):
    """MLflow: an SQLite store beside the run folders, or a tracking server."""

    uses: ClassVar[frozenset[str]] = frozenset({"uri", "experiment"})

    def __init__(self, run_dir: Path, uri: str, experiment: str) -> None:
        super().__init__(run_dir, keep_secrets(uri), experiment)
        # Not in the background thread, as changing the environment while other threads read it is not safe.
        quiet_mlflow()

    def copy(self) -> None:
        sync(self.run_dir, self.uri, self.experiment)

    @property
    def place(self) -> str:
        return f"MLflow, experiment {self.experiment!r} at {self.uri}"

    @property
    def later(self) -> str:
        return f"`fedpriv sync {self.run_dir}{self._again}` sends them later"

    @property
    def _again(self) -> str:
        """The option with which a later command sends to a store that is not the usual one."""
        try:
            permitted_store(self.run_dir, self.uri)
        except UsageError:
            return f" --tracking-uri {self.uri}"
        return ""
