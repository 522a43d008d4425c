"""A simulation: the server half of a run, all of its client halves, and an evaluation that may look at all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedpriv.client.store import ClientStore
from fedpriv.methods.base import Private
from fedpriv.server.clients import Clients
from fedpriv.server.rounds import Server, on_divergence
from fedpriv.simulation.executors.build import executor_of
from fedpriv.simulation.scoring import AllClientsScorer
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.watched_downloads import WatchedDownloads
from fedpriv.spans import UNTIMED, Spans
from fedpriv.storage.run_folder import RunFolder


class Simulation(Server):
    """A run whose clients are all here: puts the executor and the scorer of a federation behind its server.

    Args:
        warn: called with warnings of one line.
        profile: times the categories of work.
    """

    def __init__(self, federation: Federation, folder: RunFolder, warn: Callable[[str], None], profile: Spans = UNTIMED) -> None:
        self.federation, self.store = federation, ClientStore(folder.clients)
        if federation.augment is not None:
            federation.augment = profile.timed("data", federation.augment)
        self.executor = executor_of(federation, self.store, warn)
        self.executor.profile = profile
        scorer = AllClientsScorer(federation, self.store, partial(on_divergence, federation.config, warn))
        holders = federation.data.partition.holders() if federation.config.privacy.level == "sample" else None
        clients: Clients = self.executor
        if federation.config.wire.secure_aggregation:
            from fedpriv.simulation.masked_clients import MaskedClients

            clients = MaskedClients(self.executor, folder.path.name, lambda upload: self._keep("hidden", upload), warn)
        sizes = federation.data.sizes
        super().__init__(federation.agreement, folder, clients, scorer, warn, holders, profile, samples=sizes)
        self.scorer: AllClientsScorer = scorer
        self._watched = WatchedDownloads(federation.agreement, folder, warn)
        if federation.config.wire.check_downloads is None:
            self.taps.append(profile.timed("serialisation", self._watched))

    def restore(self) -> None:
        """As :meth:`Server.restore`; also ``Damaged`` where a client does not know any more what it spent."""
        super().restore()
        if self.federation.config.privacy.level == "sample":
            for account, charges in self.progress.privacy.items():
                self.store.check_spent(int(account), sum(round(steps) for *_, steps in charges))

    def notes(self) -> list[str]:
        """What the user should know of the run, a line each."""
        warning = self._watched.warning
        return [*self.federation.prepared.said, *([] if warning is None else [warning])]

    def private(self, client: int) -> Private:
        """What a client keeps at present; before its first local update, what it begins with."""
        return self.federation.client(client, self.store).private(self.progress.clients.get(client), self.federation.initial)

    def stored(self, client: int) -> Private | None:
        """What a client kept of its last local update that counted; ``None``: nothing."""
        return self.private(client) if client in self.progress.clients else None
