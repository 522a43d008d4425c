"""Runs that a client's divergence ended. With the same config they would end so again, so this is their result."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedpriv.experiments.results import Stored, made_as
from fedpriv.files import write_atomically
from fedpriv.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Divergence(Stored):
    """A run without numbers, since the loss or the weights of a client became infinite or NaN (``train.on_nan: stop``).

    Attributes:
        label to plugins: as of a :class:`~fedpriv.experiments.results.Result`.
        client, diverged_in: which client did, and in which round.
    """

    SOMETHING_ELSE = "does not say how a run diverged"

    processor: str
    data_hash: str
    client: int
    diverged_in: int

    def __str__(self) -> str:
        return f"client {self.client} diverged in round {self.diverged_in}"

    @classmethod
    def of(cls, folder: RunFolder, label: str) -> Divergence | None:
        """Of a run folder; ``None`` where no divergence ended the run."""
        facts = folder.facts
        if facts.get("status") != "failed" or not (found := facts.get("diverged")):
            return None
        return cls(**made_as(folder, label), client=found["client"], diverged_in=found["round"])

    def write(self, path: Path) -> None:
        """Write as JSON, one line per field."""
        lines = [f' "{name}": {json.dumps(value)}' for name, value in asdict(self).items()]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
