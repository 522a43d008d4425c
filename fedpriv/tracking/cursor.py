"""The progress of copying a run to MLflow, in ``tracking.json`` of the run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.files import Damaged, load_json, save_json

CURSOR = "tracking.json"


@dataclass
class Cursor:
    """How far the copy to a store is."""

    uri: str
    experiment: str
    experiment_id: str | None = None
    mlflow_run_id: str | None = None
    lines_sent: int = 0
    last_round: int = -1
    params_sent: bool = False
    artifacts_sent: dict[str, str] = field(default_factory=dict)
    status_sent: str | None = None

    @classmethod
    def load(cls, path: Path, uri: str, experiment: str) -> Cursor:
        """The stored cursor, or a fresh one if there is none, it is unreadable, or it belongs to another store."""
        try:
            stored = cls(**load_json(path))
        except (Damaged, TypeError):
            return cls(uri, experiment)
        return stored if (stored.uri, stored.experiment) == (uri, experiment) else cls(uri, experiment)

    def save(self, path: Path) -> None:
        """Write the cursor atomically, also if the power fails: every command would refuse a run whose cursor is torn."""
        save_json(path, asdict(self))


def stored_cursor(run_dir: Path) -> dict[str, Any]:
    """What the file says, of whatever store; empty where there is none."""
    path = run_dir / CURSOR
    return load_json(path) if path.exists() else {}
