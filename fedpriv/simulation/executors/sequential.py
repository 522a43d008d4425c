"""Executors run the clients of a simulation. The reference is ``SequentialExecutor``: one after another, in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from fedpriv.client.model import ClientModel
from fedpriv.client.receiving import Received, receive
from fedpriv.client.store import ClientStore
from fedpriv.client.suspicion import generator_of_run
from fedpriv.server.clients import Clients, Instruction
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.requests import SampleCount
from fedpriv.spans import UNTIMED, Spans
from fedpriv.wire import Sealed
from fedpriv.wire.report import Answer

Warn = Callable[[str], None]


class Executor(Clients):
    """The clients of a simulation.

    Args:
        store: where they keep their private states; ``None``: they keep none.
    """

    def __init__(self, federation: Federation, store: ClientStore | None) -> None:
        self.federation, self.store = federation, store
        self.initial = federation.initial
        """``(p,)`` the model before the first round, as the clients have received it."""
        self.sample_count = SampleCount()
        """Training samples processed since it was last read."""
        self.profile: Spans = UNTIMED

    def welcome(self, broadcast: Sealed) -> None:
        agreement = self.federation.agreement
        self.initial = receive(agreement, 0, broadcast, self.initial, generator_of_run(agreement, 0)).start

    def damaged(self, states: Mapping[int, int]) -> str | None:
        return self.store.damaged(states) if self.store else None

    def forget(self, states: Iterable[tuple[int, int]]) -> None:
        if self.store:
            self.store.forget(states)

    def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
        if self.store:
            self.store.keep_only(states)

    def measured(self) -> Mapping[str, float]:
        padding = self.sample_count.take().padding
        return {} if padding is None else {"padding": padding}

    def groups(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Groups of clients that train together, the largest clients first; by default one client each."""
        return [(client,) for client in sorted(clients, key=self.federation.data.size, reverse=True)]


class LocalExecutor(Executor):
    """An executor that runs the clients in this process.

    Attributes:
        model: ``(p,)`` the whole trained model of the client that answered last, private parts included; a view that is valid
            until the next local update. It is not part of the answer, which may have to cross processes.
    """

    model: Tensor

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        received = self._received(instruction)
        for answer, model in self._updates(instruction, received):
            self.model = model
            yield answer

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        received = self._received(instruction)
        for number in instruction.clients:
            client = self.federation.client(number, self.store)
            yield client.test(self.federation.resident, received, instruction.last.get(number))

    @abstractmethod
    def _updates(self, instruction: Instruction, received: Received) -> Iterator[tuple[Answer, Tensor]]:
        """Yield the answers, each with the client's whole trained model ``(p,)``."""

    def _update(self, model: ClientModel, number: int, instruction: Instruction, received: Received) -> tuple[Answer, Tensor]:
        """One client's local update, which trains ``model`` in place."""
        client = self.federation.client(number, self.store)
        return client.train(model, received, instruction.last.get(number), self.profile), model.row

    def _received(self, instruction: Instruction) -> Received:
        agreement, round = self.federation.agreement, instruction.round
        with self.profile("serialisation"):
            return receive(agreement, round, instruction.message, self.initial, generator_of_run(agreement, round))


class SequentialExecutor(LocalExecutor):
    """Runs a round's clients one after another on the resident net."""

    def _updates(self, instruction: Instruction, received: Received) -> Iterator[tuple[Answer, Tensor]]:
        for client in instruction.clients:
            yield self._update(self.federation.resident, client, instruction, received)
