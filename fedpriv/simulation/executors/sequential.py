"""Executors run the clients' turns of a round. The reference is ``SequentialExecutor``: one after another, in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from fedpriv.client.model import ClientModel
from fedpriv.client.turn import ClientDiverged, Turn
from fedpriv.methods.base import Private
from fedpriv.privacy.plan import check_upload
from fedpriv.seeding import generator
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.spans import UNTIMED, Spans
from fedpriv.simulation.vectorized.requests import SampleCount
from fedpriv.wire import Payload, Sealed, TransformContext

Spend = Callable[[int, float, int], None]
Warn = Callable[[str], None]


@dataclass(frozen=True)
class TurnResult:
    """The result of a client's turn: its upload, its private state (views, valid until the next turn), its loss.

    ``reported``: numbers that the client's half and the transforms reported, by name.
    """

    client: int
    upload: Sealed | None
    kept: Mapping[str, Tensor]
    mean_loss: float
    num_examples: int
    reported: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Orders:
    """The task of an executor: a round's clients, and their download."""

    round: int
    clients: Sequence[int]
    download: Sealed | None
    private: Callable[[int], Private | None]


@dataclass(frozen=True)
class Round:
    """What a round's turns have in common.

    Attributes:
        received: what every participant was sent.
        start: ``(p,)`` the model that they begin with, but for what each keeps.
        private: what a client kept from its last turn, ``None`` before the first.
    """

    number: int
    received: Mapping[str, Tensor]
    start: Tensor
    private: Callable[[int], Private | None]


@dataclass(frozen=True)
class Finished:
    """A turn that is over.

    Attributes:
        model: ``(p,)`` its whole model, a view, valid until the next turn.
        payload: what the client sends, before transforms.
        kept: what it keeps.
    """

    client: int
    model: Tensor
    payload: Payload | None
    kept: Mapping[str, Tensor]
    mean_loss: float
    num_examples: int
    reported: dict[str, float]


class Executor(ABC):
    """Runs a round's clients.

    Args:
        spend: called with (client, sampling rate, steps) before a client trains with sample-level DP.
    """

    def __init__(self, federation: Federation, spend: Spend | None = None) -> None:
        self.federation, self.spend = federation, spend
        self.sample_count = SampleCount()
        """Since it was last read."""
        self.profile: Spans = UNTIMED

    def run(
        self,
        round: int,
        clients: Sequence[int],
        download: Sealed | None,
        private: Callable[[int], Private | None],
        on_drop: Callable[[ClientDiverged], None],
    ) -> Iterator[TurnResult]:
        """The turns' results, in whatever order they end.

        Args:
            private: what a client kept from its last turn, ``None`` before the first.
            on_drop: called for a client that diverged; it may raise to stop the run, otherwise the client is left out.
        """
        if download is not None:
            with self.profile("serialisation"):
                for _ in clients:
                    self.federation.wire.download(download)
        for ended in self._results(Orders(round, clients, download, private)):
            if isinstance(ended, ClientDiverged):
                on_drop(ended)
            else:
                yield ended

    @abstractmethod
    def _results(self, orders: Orders) -> Iterator[TurnResult | ClientDiverged]:
        """The turns, as they end."""

    def groups(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Groups of clients that train together, the longest turns first; by default one client each."""
        return [(client,) for client in sorted(clients, key=self.federation.data.size, reverse=True)]

    def close(self) -> None:  # noqa: B027 (nothing is a sound default)
        """Release resources other than memory; by default there are none."""


class LocalExecutor(Executor):
    """Runs them in this process.

    Attributes:
        model: ``(p,)`` the whole model of the client whose result came last; a view, valid until the next turn. It is no part of
            the result, which may have to go from one process to another.
    """

    model: Tensor

    def _results(self, orders: Orders) -> Iterator[TurnResult | ClientDiverged]:
        fed, download = self.federation, orders.download
        device = fed.resident.device
        with self.profile("serialisation"):
            received = {name: tensor.to(device) for name, tensor in download.tensors().items()} if download else {}
            # What a client keeps never overrides what it receives; what it neither keeps nor receives is as it was initially.
            start = fed.resident.space.pack(received, fed.initial.clone())
        for ended in self._turns(Round(orders.round, received, start, orders.private), orders.clients):
            if isinstance(ended, ClientDiverged):
                yield ended
                continue
            with self.profile("serialisation", client=ended.client):
                sent = self._sent(ended, orders.round, received)
            self.model = ended.model
            yield sent

    @abstractmethod
    def _turns(self, round: Round, clients: Sequence[int]) -> Iterator[Finished | ClientDiverged]:
        """The turns, as they end."""

    def _play(self, model: ClientModel, client: int, round: Round) -> Finished | ClientDiverged:
        """One client's turn, on a model that it has for the time being."""
        fed = self.federation
        stored = round.private(client)
        kept = fed.method.first_private(client, fed.initial) if stored is None else stored
        model.row.copy_(round.start)
        model.space.pack({name: tensor for name, tensor in kept.items() if name not in round.received}, model.row)
        with self.profile("data", client=client):
            data = fed.data.train(client)
        turn = Turn(
            model,
            data,
            fed.config,
            round.number,
            client,
            round.received,
            kept,
            stored is None,
            augment=fed.augment,
            unused=fed.unused(client),
        )
        if self.spend is not None and fed.config.privacy.level == "sample":
            turn.spend = partial(self.spend, client)
        try:
            fed.method.local_update(turn)
        except ClientDiverged as error:
            return error
        payload, keeps = fed.method.upload(turn), fed.method.keep(turn)
        return Finished(client, model.row, payload, keeps, turn.mean_loss, turn.num_examples, turn.reported)

    def _sent(self, ended: Finished, round: int, received: Mapping[str, Tensor]) -> TurnResult:
        fed, level, payload = self.federation, self.federation.config.privacy.level, ended.payload
        if payload is not None and level == "client":
            payload = replace(payload, num_examples=None)  # every client weighs the same
        contexts = partial(self._context, round, ended.client, received, ended.reported)
        upload = None if payload is None else fed.wire.upload(payload, contexts)
        if upload is not None and level != "none":
            check_upload(upload)
        return TurnResult(ended.client, upload, ended.kept, ended.mean_loss, ended.num_examples, ended.reported)

    def _context(
        self, round: int, client: int, received: Mapping[str, Tensor], reported: dict[str, float], index: int
    ) -> TransformContext:
        fed = self.federation
        drawn = generator(fed.config.seed, round, client, "transform", index)
        return TransformContext(received, fed.layers, drawn, fed.linear, reported.__setitem__)


class SequentialExecutor(LocalExecutor):
    """Runs a round's clients one after another on the resident net."""

    def _turns(self, round: Round, clients: Sequence[int]) -> Iterator[Finished | ClientDiverged]:
        for client in clients:
            yield self._play(self.federation.resident, client, round)
