"""Runs that a client's divergence ended. The same config would end so again, so this is their result."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.experiments.results import StoredRun, made_as
from fedpriv.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Divergence(StoredRun):
    """A run without numbers, as the loss or the weights of a client became infinite or NaN (``train.on_nan: stop``).

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
        if facts.get("status") != "failed" or not (diverged := facts.get("diverged")):
            return None
        return cls(**made_as(folder, label), client=diverged["client"], diverged_in=diverged["round"])
