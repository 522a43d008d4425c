"""A simulation: the server and all clients of a run in one process, and an evaluation that sees all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from fedpriv.client.store import ClientStore
from fedpriv.methods.base import Private
from fedpriv.scores.custom import CustomScores
from fedpriv.server.answers.collecting import on_divergence
from fedpriv.server.clients import Clients
from fedpriv.server.next_state import Outcome
from fedpriv.server.rounds import Server
from fedpriv.simulation.executors.build import build_executor
from fedpriv.simulation.scoring import AllClientsScorer
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.watched_downloads import WatchedDownloads
from fedpriv.spans import UNTIMED, Spans
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire.report import Report


class Simulation(Server):
    """A run whose clients are simulated: a server whose clients are an executor, with a scorer of all clients.

    Args:
        warn: called with warnings of one line.
        profile: times the categories of work.
        custom: scores of the user's own.
    """

    def __init__(
        self,
        federation: Federation,
        folder: RunFolder,
        warn: Callable[[str], None],
        profile: Spans = UNTIMED,
        custom: CustomScores = MappingProxyType({}),
    ) -> None:
        self.federation, self.store = federation, ClientStore(folder.clients)
        if federation.augment is not None:
            federation.augment = profile.timed("data", federation.augment)
        self.executor = build_executor(federation, self.store, warn)
        self.executor.profile = profile
        scorer = AllClientsScorer(federation, self.store, partial(on_divergence, federation.config, warn), custom)
        holders = federation.places.partition.holders() if federation.config.privacy.level == "sample" else None
        clients: Clients = self.executor
        if federation.config.wire.secure_aggregation:
            from fedpriv.simulation.masked_clients import MaskedClients

            clients = MaskedClients(self.executor, folder.path.name, lambda upload: self.collector.keep_held_back(upload), warn)
        sizes = federation.places.sizes
        # All rows in one place need no messages to measure them.
        crossed = () if federation.statistics is None or federation.pooled is not None else federation.statistics.crossed
        super().__init__(federation.agreement, folder, clients, scorer, warn, holders, profile, samples=sizes, statistics=crossed)
        self.scorer: AllClientsScorer = scorer
        self._watched = WatchedDownloads(federation.agreement, folder, warn)
        if federation.config.wire.check_downloads is None:
            self.taps.append(profile.timed("serialisation", self._watched))

    def restore(self) -> None:
        """As :meth:`Server.restore`; also raises ``Damaged`` if the record of what a client spent is lost."""
        super().restore()
        if self.federation.config.privacy.level == "sample":
            for account, charges in self.progress.privacy.items():
                self.store.check_spent(int(account), sum(round(steps) for *_, steps in charges))

    def _adopt(self, round: int, outcome: Outcome, reports: Sequence[Report]) -> None:
        """As :meth:`Server._adopt`; a pooled model is in the server's place as soon as it is trained, without a message."""
        super()._adopt(round, outcome, reports)
        if self.federation.pooled is not None and self.progress.clients.get(0) == round:
            self.state = replace(self.state, row=self.agreement.space.pack(self.private(0), self.state.row.clone()))

    def notes(self) -> list[str]:
        """Notes for the user, a line each."""
        warning = self._watched.warning
        return [*self.federation.prepared.notes, *([] if warning is None else [warning])]

    def private(self, client: int) -> Private:
        """A client's present private state; before its first local update, the initial one."""
        return self.federation.client(client, self.store).private(self.progress.clients.get(client), self.federation.initial)

    def stored(self, client: int) -> Private | None:
        """A client's private state after its last merged local update; ``None``: it has stored none."""
        return self.private(client) if client in self.progress.clients else None
