"""Turns that the server plays itself, to see what a client's upload would be had it trained on data of the server's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from fedpriv.data.federated import FederatedData, Split
from fedpriv.encoding import decoded
from fedpriv.samples import Modality, lacking
from fedpriv.simulation.executor import SequentialExecutor
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Sealed, Wire


@dataclass(frozen=True)
class _OneClient:
    """The data of a federation in which one client trains on chosen samples."""

    chosen: Split

    def train(self, client: int) -> Split:
        return self.chosen

    def lacking(self, client: int) -> Modality | None:
        return lacking(self.chosen.inputs)


@dataclass(frozen=True)
class Played:
    """What a shadow uploads, by the net's names, and its whole model ``(p,)``, which the server that played it has too."""

    uploaded: Mapping[str, Tensor]
    model: Tensor


class ShadowTurns:
    """The run's very turn (schedule, loss, DP, transforms), from what the server sent, on other data.

    A shadow is a client whose number is not in the federation, so none of the run's draws is used: the server does not know
    them. It is at its first turn: what clients keep from earlier ones never crossed the wire. What the server sent neither in
    round 0 nor in this round it draws itself. Nothing is counted, kept or booked.

    Args:
        download: what the participants of the round were sent.
        broadcast: what all were sent in round 0, if anything.
    """

    def __init__(self, federation: Federation, round: int, download: Sealed, broadcast: Sealed | None) -> None:
        self.federation, self.round, self.download = federation, round, download
        self.received = download.tensors()
        drawn = federation.method.context.new_row("attacker").to(federation.resident.device)
        self.initial = federation.resident.space.pack({} if broadcast is None else broadcast.tensors(), drawn)

    def play(self, data: Split, number: int) -> Played | None:
        """Train on ``data`` as shadow ``number``; ``None`` where it diverged."""
        fed = self.federation
        alone = replace(fed, data=cast(FederatedData, _OneClient(data)), wire=Wire(fed.wire.transforms), initial=self.initial)
        executor = SequentialExecutor(alone, spend=lambda client, rate, steps: None)
        shadow = fed.config.data.clients + number
        for result in executor.run(self.round, [shadow], self.download, lambda client: None, lambda error: None):
            if result.upload is not None:
                return Played(decoded(result.upload, self.received).tensors(), fed.resident.row.clone())
        return None
