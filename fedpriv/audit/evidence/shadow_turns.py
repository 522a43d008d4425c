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
"""A shadow's number -> its training data. May be called more than once for a shadow."""


@dataclass(frozen=True)
class _Shadows:
    """The data of a federation whose clients are shadows; a shadow's data are made when its turn begins.

    Attributes:
        first: the client number of shadow 0.
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
        """The same for all shadows, so that they run in the requested order."""
        return 1


@dataclass(frozen=True)
class ShadowResult:
    """The result of a shadow's turn: its upload, by the net's names and sealed, and its model ``(p,)``."""

    uploaded: Mapping[str, Tensor]
    model: Tensor
    sealed: Sealed


class ShadowTurns:
    """Local training as in the run (schedule, loss, DP, transforms), from the server's download, on other data.

    A shadow is a client whose number is not in the federation, so its random draws differ from the run's, which the server does
    not know. Every turn is a client's first, as state that clients keep was never sent. Weights that the server sent neither in
    round 0 nor in this round are drawn at random. The turns leave no trace in the run's counters, payloads or ledger.

    Args:
        download: the download of the round.
        broadcast: the download of round 0, if there was one.
    """

    def __init__(self, federation: Federation, round: int, download: Sealed, broadcast: Sealed | None) -> None:
        self.federation, self.round, self.download = federation, round, download
        self.received = download.tensors()
        drawn = federation.method.context.new_row("attacker").to(federation.resident.device)
        self.initial = federation.resident.space.pack({} if broadcast is None else broadcast.tensors(), drawn)

    def run(self, data: DataOf, numbers: Sequence[int]) -> Iterator[ShadowResult | None]:
        """Train the shadows with these numbers and yield their results in this order; ``None`` for one that diverged.

        Shadows train as the run's clients do, one after another or in groups. Only one group's data and models are in memory,
        besides what the caller keeps. All run in this process even if the run had workers: forked workers do not have the
        shadows' data, and do not return models.
        """
        fed = self.federation
        shadows = cast(FederatedData, _Shadows(data, fed.config.data.clients))
        federation = replace(fed, data=shadows, agreement=replace(fed.agreement, initial=self.initial))
        # Grouping does not change the results, so the warning that a group did not fit into memory is dropped.
        executor = in_this_process(federation, None, lambda text: None)
        clients = [fed.config.data.clients + number for number in numbers]
        for answer in executor.train(Instruction(self.round, clients, self.download)):
            if (upload := answer.upload) is None:
                yield None
            else:
                yield ShadowResult(decoded(upload, self.received).tensors(), executor.model.clone(), upload)
