"""Executors run many client halves in one place. The reference is ``SequentialExecutor``: one after another, in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from fedpriv.client.client import Received, receive
from fedpriv.client.model import ClientModel
from fedpriv.client.store import ClientStore
from fedpriv.client.suspicion import draw_of_run
from fedpriv.server.clients import Clients, Instruction
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.requests import SampleCount
from fedpriv.spans import UNTIMED, Spans
from fedpriv.wire import Sealed
from fedpriv.wire.report import Answer

Warn = Callable[[str], None]


class Executor(Clients):
    """Clients that are all in this simulation.

    Args:
        store: where they keep their private states; ``None``: nowhere.
    """

    def __init__(self, federation: Federation, store: ClientStore | None) -> None:
        self.federation, self.store = federation, store
        self.initial = federation.initial
        """``(p,)`` the clients' model before the first round."""
        self.sample_count = SampleCount()
        """Since it was last read."""
        self.profile: Spans = UNTIMED

    def welcome(self, broadcast: Sealed) -> None:
        agreement = self.federation.agreement
        self.initial = receive(agreement, 0, broadcast, self.initial, draw_of_run(agreement, 0)).start

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
        """Groups of clients that train together, the longest local updates first; by default one client each."""
        return [(client,) for client in sorted(clients, key=self.federation.data.size, reverse=True)]


class LocalExecutor(Executor):
    """Runs them in this process.

    Attributes:
        model: ``(p,)`` the whole model of the client whose answer came last; a view, valid until the next local update. It is no
            part of the answer, which may have to go from one process to another.
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
        """The answers as they come, each with the client's whole model ``(p,)``."""

    def _update(self, model: ClientModel, number: int, instruction: Instruction, received: Received) -> tuple[Answer, Tensor]:
        """One client's local update, on a model that it has for the time being."""
        client = self.federation.client(number, self.store)
        return client.train(model, received, instruction.last.get(number), self.profile), model.row

    def _received(self, instruction: Instruction) -> Received:
        agreement, round = self.federation.agreement, instruction.round
        with self.profile("serialisation"):
            return receive(agreement, round, instruction.message, self.initial, draw_of_run(agreement, round))


class SequentialExecutor(LocalExecutor):
    """Runs a round's clients one after another on the resident net."""

    def _updates(self, instruction: Instruction, received: Received) -> Iterator[tuple[Answer, Tensor]]:
        for client in instruction.clients:
            yield self._update(self.federation.resident, client, instruction, received)
