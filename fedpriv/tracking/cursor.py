"""How far the copy of a run to a store is: ``tracking.json`` in the run folder.

It is written after each acknowledged request, so a request whose acknowledgement was lost is sent again; MLflow's SQL stores keep
one of two equal points.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.files import Damaged, load_json, save_json

CURSOR = "tracking.json"


@dataclass
class Cursor:
    """Progress of the copy to a store."""

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
        """The stored cursor; a new one if there is none, or it is unreadable or belongs to another store."""
        try:
            stored = cls(**load_json(path))
        except (Damaged, TypeError):
            return cls(uri, experiment)
        return stored if (stored.uri, stored.experiment) == (uri, experiment) else cls(uri, experiment)

    def save(self, path: Path) -> None:
        """Write the cursor atomically: every command refuses a run with an incomplete cursor."""
        save_json(path, asdict(self))


def stored_cursor(run_dir: Path) -> dict[str, Any]:
    """The contents of the file, whatever store it belongs to; empty if there is none."""
    path = run_dir / CURSOR
    return load_json(path) if path.exists() else {}
