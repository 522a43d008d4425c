"""The interface between server and clients: what the server asks of its clients, and how their answers come back.

It is implemented by the executors of a simulation, and by clients on a network. The server never sees a client's data, labels or
private state.
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
        last: for clients that keep a private state: client -> round of its last local update that was merged. A client goes on
            from the state of that round, so the same instruction gives the same bytes.
    """

    round: int
    clients: Sequence[int]
    message: Sealed | None
    last: Mapping[int, int] = field(default_factory=dict)

    def of(self, clients: Sequence[int]) -> Instruction:
        """The instruction for these clients alone."""
        return replace(self, clients=clients, last={client: self.last[client] for client in clients if client in self.last})


class Clients(PrivateStates, ABC):
    """All clients of a run, as the server reaches them."""

    vacant: Collection[int] = ()
    """Numbers of a run that have no client, so that nothing is sent to them."""

    @abstractmethod
    def welcome(self, broadcast: Sealed) -> None:
        """Send the initial model to every client. Called again after a resume, as a client may have been restarted as well."""

    @abstractmethod
    def train(self, instruction: Instruction) -> Iterator[Answer]:
        """Have the clients train locally; yields their answers in the order of arrival."""

    @abstractmethod
    def test(self, instruction: Instruction) -> Iterator[Answer]:
        """Have the clients test the server's model, completed by their private parts, on their own test samples."""

    def missing(self) -> Mapping[int, str]:
        """Clients that gave no answer to the last instruction, with reasons; by default none."""
        return {}

    def not_sent(self) -> Collection[int]:
        """The missing clients that were not connected, so that the last instruction was not sent to them."""
        return ()

    def step(self, round: int, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        """Do a step of the round's secure sum: sends each client its message, and yields (client, answer) in the order of
        arrival.

        Raises:
            FedprivError: by default, for clients that can only send single uploads.
        """
        raise FedprivError("wire.secure_aggregation is not supported by this kind of clients; leave it out")

    def measured(self) -> Mapping[str, float]:
        """Numbers on how the clients were run, for the round's record; reading them resets them."""
        return {}

    def cpu_seconds(self) -> float:
        """CPU seconds that other processes of this run have spent on the clients; reading them resets them. Those of clients on
        other machines are not known."""
        return 0.0

    def close(self) -> None:
        """Release resources other than memory; by default there are none."""


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        metrics: numbers for the round's record, by name.
        per_client: score (:data:`fedpriv.scores.catalogue.SCORES`) -> its value of each client (``None``: the client has no test
            data, or the score is not defined on them); ``None``: clients were not tested.
    """

    metrics: Mapping[str, float]
    per_client: Mapping[str, list[float | None]] | None = None


class Scorer(Protocol):
    """Scores a server's state."""

    @property
    def untested(self) -> Mapping[int, str]:
        """Clients with test data that the last evaluation lacks, with reasons."""

    def score(self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Upload] = ()) -> Evaluation:
        """The metrics of a state, and the clients' scores.

        Args:
            last: as in :class:`Instruction`.
            uploads: the uploads that were merged into this state.
        """
