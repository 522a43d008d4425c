"""Checkpoints of a run after any round: the server's state, and which local update each client continues from.

The JSON file of a round is its commit point: everything it names was written, and synced, before it. Clients keep their private
states themselves, a file for each local update; the checkpoint only names the round of that update, eight bytes a client. So a
checkpoint costs what the round changed, and memory does not grow with the number of clients. The last two checkpoints are kept,
and those of the best rounds that they name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.config import parse
from fedpriv.errors import FedprivError, UsageError, first_line
from fedpriv.files import Damaged, load_json, load_tensors, save_json, save_tensors

KEPT = 2
"""Checkpoints that are kept: if the newest is damaged, the one before it is used."""
_CLIENTS = "clients"


@dataclass
class Progress:
    """Where a run stands after ``round`` rounds (0: after the broadcast of the initial model).

    Attributes:
        clients: for clients that keep a private state: client -> round of its last local update that was merged.
        record: the line of ``metrics.jsonl`` that belongs to this round.
        total_bytes_up, total_bytes_down: bytes sent since the start.
        seconds: time spent in rounds since the start.
        cpu_seconds: CPU seconds of the run in rounds: of this process, and of the executor's workers.
        privacy: the ledger's accounts (:mod:`fedpriv.privacy.ledger`).
        best: the best round so far on validation data (:mod:`fedpriv.server.best`); ``None``: there is none.
    """

    round: int = 0
    clients: dict[int, int] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    total_bytes_up: int = 0
    total_bytes_down: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    privacy: dict[str, list[list[float]]] = field(default_factory=dict)
    best: int | None = None


class PrivateStates(Protocol):
    """What clients keep between rounds. The server names each state by client and round, and never sees it."""

    def damaged(self, states: Mapping[int, int]) -> str | None:
        """The first private state (client -> round) that cannot be read, in a line; ``None``: all can, or it is unknown."""

    def forget(self, states: Iterable[tuple[int, int]]) -> None:
        """Remove states (client, round) that no checkpoint names any more."""

    def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
        """Remove all states but these (client, round), such as those of a round that was killed."""


class Checkpoints:
    """The checkpoint folder of a run.

    Args:
        folder: made if missing.
        fingerprint: fingerprint of the run's config; a checkpoint of another config is refused.
        states: the private states that checkpoints name.
    """

    def __init__(self, folder: Path, fingerprint: str, states: PrivateStates) -> None:
        self.folder, self.fingerprint, self.states = folder, fingerprint, states
        self._committed: list[Progress] = []
        folder.mkdir(parents=True, exist_ok=True)

    def commit(self, progress: Progress, server: Mapping[str, Tensor]) -> None:
        """Make ``progress`` the state to go on from, then drop what no kept checkpoint needs."""
        save_tensors(self._server_file(progress.round), {**server, _CLIENTS: _table(progress.clients)})
        body = {"config": self.fingerprint, "progress": asdict(replace(progress, clients={}))}
        save_json(self._commit_file(progress.round), body)
        self._committed.append(_copy(progress))
        kept = _kept(self._committed)
        for old in [each for each in self._committed if each not in kept]:  # several if the run was killed right here
            self._commit_file(old.round).unlink(missing_ok=True)
            self._server_file(old.round).unlink(missing_ok=True)
            named = [each.clients for each in kept]
            self.states.forget(
                (client, round) for client, round in old.clients.items() if all(now.get(client) != round for now in named)
            )
        self._committed = kept

    def of_round(self, round: int) -> tuple[Progress, dict[str, Tensor]]:
        """The checkpoint of a round that is kept, and its server state.

        Raises:
            Damaged: it is not whole.
        """
        return self._read(self._commit_file(round))

    def latest(self) -> tuple[Progress, dict[str, Tensor], list[str]]:
        """The newest checkpoint that is whole, its server state, and what is wrong with newer ones (a line each).

        Raises:
            FedprivError: no checkpoint is whole.
        """
        complaints: list[str] = []
        newest: tuple[Progress, dict[str, Tensor]] | None = None
        for path in sorted(self.folder.glob("round-*.json"), reverse=True):
            try:
                progress, server = self._read(path)
            except Damaged as error:
                complaints.append(str(error))
                continue
            newest = newest or (progress, server)
            self._committed.insert(0, _copy(progress))
        if newest is None:
            raise FedprivError(f"no checkpoint in {self.folder} can be used" + "".join(f"; {c}" for c in complaints))
        self._committed = _kept(self._committed)  # there are more if the run was killed before it removed the oldest
        self._sweep()
        return *newest, complaints

    def _read(self, path: Path) -> tuple[Progress, dict[str, Tensor]]:
        stored = load_json(path)
        try:
            config, progress = stored["config"], stored["progress"]
            parse(Progress, progress, str(path))
            Progress(**progress)  # also refuses unknown names, which `parse` lets pass
        except (KeyError, TypeError, UsageError) as error:
            raise Damaged(f"{path} is damaged: not a checkpoint ({first_line(error)})") from None
        if config != self.fingerprint:
            raise ConfigChanged(
                f"the config of this run was changed since its checkpoint of round {progress['round']}; "
                "restore config.yaml, or start a new run with `fedpriv train --config`"
            )
        server = load_tensors(self._server_file(progress["round"]))
        clients = dict(server.pop(_CLIENTS).T.tolist())
        if damaged := self.states.damaged(clients):
            raise Damaged(damaged)
        return Progress(**{**progress, "clients": clients}), server

    def _sweep(self) -> None:
        """Remove what a killed round left behind."""
        needed = {self._server_file(p.round) for p in self._committed} | {self._commit_file(p.round) for p in self._committed}
        for path in self.folder.iterdir():
            if path not in needed and re.match(r"(round|server)-", path.name):
                path.unlink(missing_ok=True)
        self.states.keep_only({state for progress in self._committed for state in progress.clients.items()})

    def _server_file(self, round: int) -> Path:
        return self.folder / f"server-{round:06d}.safetensors"

    def _commit_file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.json"


class ConfigChanged(FedprivError):
    """The run folder's config is not the one that its checkpoints were made with."""

    exit_code = 2


def _kept(committed: Sequence[Progress]) -> list[Progress]:
    """Those of the checkpoints, in order, that are kept: the last ones, and the best rounds that these name."""
    last = committed[-KEPT:]
    best = {progress.best for progress in last}
    return [progress for progress in committed if progress.round in best or progress in last]


def _copy(progress: Progress) -> Progress:
    """A copy that the run does not change any more."""
    return replace(progress, clients=dict(progress.clients))


def _table(clients: Mapping[int, int]) -> Tensor:
    """``(2, n)`` int32: clients, ascending, and the round of each."""
    rows = np.stack([np.fromiter(numbers, np.int32, len(clients)) for numbers in (clients.keys(), clients.values())])
    return torch.from_numpy(rows[:, rows[0].argsort()])
