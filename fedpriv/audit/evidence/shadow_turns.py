"""Shadow turns: the server simulates clients on data of its choice, and observes their uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from torch import Tensor

from fedpriv.data.federated import FederatedData, Split
from fedpriv.samples import Modality, lacking
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.build import in_this_process
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Sealed
from fedpriv.wire.coding import decoded

DataOf = Callable[[int], Split]
"""A shadow's number -> its training data; may be called more than once."""


@dataclass(frozen=True)
class _Shadows:
    """The data of a federation whose clients are shadows, each made when its turn begins.

    Attributes:
        first: the client that stands for shadow 0.
    """

    of: DataOf
    first: int
    lacks: dict[int, Modality | None] = field(default_factory=dict)

    def train(self, client: int) -> Split:
        chosen = self.of(client - self.first)
        self.lacks[client] = lacking(chosen.inputs)
        return chosen

    def lacking(self, client: int) -> Modality | None:
        return self.lacks[client]

    def size(self, client: int) -> int:
        """The same for all, so that they run in the order of the instruction."""
        return 1


@dataclass(frozen=True)
class Played:
    """A shadow's upload, by the net's names and sealed, and its model ``(p,)``, which the simulating server has."""

    uploaded: Mapping[str, Tensor]
    model: Tensor
    sealed: Sealed


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

    def play(self, data: DataOf, numbers: Sequence[int]) -> Iterator[Played | None]:
        """The turns of the shadows of these numbers, in this order; ``None`` for one that diverged.

        They are played as the run's clients are, one after another or in groups. In memory are the data and the models of one
        group, and whatever the caller holds on to. All are played in this process, however many workers the run had: those
        have what there was when they were forked, which a shadow's data is no part of, and no model comes back from them.
        """
        fed = self.federation
        shadows = cast(FederatedData, _Shadows(data, fed.config.data.clients))
        federation = replace(fed, data=shadows, agreement=replace(fed.agreement, initial=self.initial))
        # How clients are grouped does not change the results, so the warning that a group did not fit is dropped.
        executor = in_this_process(federation, None, lambda text: None)
        clients = [fed.config.data.clients + number for number in numbers]
        for answer in executor.train(Instruction(self.round, clients, self.download)):
            upload = answer.upload
            yield None if upload is None else Played(decoded(upload, self.received).tensors(), executor.model.clone(), upload)
