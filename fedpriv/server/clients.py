"""The seam between the halves of a round: what the server asks of its clients, and how their answers come back.

Behind it lies anything that can carry bytes to clients: one process that trains them one after another, several processes, or a
network. The server never sees a client's data, labels or private state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedpriv.errors import FedprivError
from fedpriv.methods.base import ServerState
from fedpriv.storage.checkpoints import PrivateStates
from fedpriv.wire import Sealed
from fedpriv.wire.coding import Upload
from fedpriv.wire.report import Answer


@dataclass(frozen=True)
class Instruction:
    """What the server asks of some clients in a round.

    Attributes:
        message: what each of them is sent; ``None``: the method does not communicate.
        last: client -> round of its last local update that counted, of those that keep a state. A client goes on from there, so
            the same instruction gives the same bytes.
    """

    round: int
    clients: Sequence[int]
    message: Sealed | None
    last: Mapping[int, int] = field(default_factory=dict)

    def of(self, clients: Sequence[int]) -> Instruction:
        """The part of the instruction that is for these clients."""
        return replace(self, clients=clients, last={client: self.last[client] for client in clients if client in self.last})


class Clients(PrivateStates, ABC):
    """All clients of a run, as the server reaches them."""

    @abstractmethod
    def welcome(self, broadcast: Sealed) -> None:
        """Carry the initial model to every client; again after a resume, as a client may have been restarted too."""

    @abstractmethod
    def train(self, instruction: Instruction) -> Iterator[Answer]:
        """Have the clients take their local updates; the answers in whatever order they come."""

    @abstractmethod
    def test(self, instruction: Instruction) -> Iterator[Answer]:
        """Have the clients score the server's model, with their own parts, on their own test samples."""

    def missing(self) -> Mapping[int, str]:
        """Clients that gave no answer to what the round asked last, with reasons; where they are all here, there are none."""
        return {}

    def not_sent(self) -> Collection[int]:
        """Those of them that the last question was not even sent to, as they were not connected."""
        return ()

    def step(self, round: int, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        """Take a step of the round's secure sum: each client's question -> (client, its answer), in whatever order they come.

        Raises:
            FedprivError: by default, they can take none.
        """
        raise FedprivError("wire.secure_aggregation: these clients send their uploads one by one")

    def measured(self) -> Mapping[str, float]:
        """Numbers about how the round was run, for its record; reading them starts them afresh."""
        return {}

    def close(self) -> None:
        """Release resources other than memory; by default there are none."""


class Scorer(Protocol):
    """Scores a server's state."""

    @property
    def untested(self) -> Mapping[int, str]:
        """Clients with test data that the last pass has no accuracy of, with reasons; where they are all here, there are none."""

    def score(
        self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Upload] = ()
    ) -> tuple[Mapping[str, float], list[float | None] | None]:
        """Metrics of the pass, and each client's accuracy in [0, 1] (``None``: no test data); no list: clients are not tested.

        Args:
            last: as in :class:`Instruction`.
            uploads: those that were merged into this state.
        """
