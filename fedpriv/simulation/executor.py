"""Who runs the clients' turns of a round. ``SequentialExecutor`` is the reference: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from fedpriv.methods.base import Private
from fedpriv.privacy.plan import check_upload
from fedpriv.seeding import generator
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.turn import ClientDiverged, Turn
from fedpriv.wire import Sealed, TransformContext

Spend = Callable[[int, float, int], None]


@dataclass(frozen=True)
class TurnResult:
    """What comes out of a client's turn: what was sent, what the client keeps (views, valid until the next turn), its loss.

    ``reported``: what the client's half and the transforms reported, by name.
    """

    client: int
    upload: Sealed | None
    kept: Mapping[str, Tensor]
    mean_loss: float
    num_examples: int
    reported: Mapping[str, float] = field(default_factory=dict)


class SequentialExecutor:
    """Runs a round's clients one after another on the resident net.

    Args:
        spend: told (client, sampling rate, steps) before a client trains with sample-level DP.
    """

    def __init__(self, federation: Federation, spend: Spend | None = None) -> None:
        self.federation, self.spend = federation, spend

    def run(
        self,
        round: int,
        clients: Sequence[int],
        download: Sealed | None,
        private: Callable[[int], Private | None],
        on_drop: Callable[[ClientDiverged], None],
    ) -> Iterator[TurnResult]:
        """The turns' results, in the order of ``clients``.

        Args:
            private: what a client kept from its last turn, ``None`` before the first.
            on_drop: told of a client that diverged; it may raise to stop the run, otherwise the client is left out.
        """
        fed = self.federation
        device, private_level = fed.resident.device, fed.config.privacy.level
        received = {name: tensor.to(device) for name, tensor in download.tensors().items()} if download else {}
        # What a client keeps never overrides what it receives; what it neither keeps nor receives is as it was initially.
        start = fed.resident.space.pack(received, fed.initial.clone())
        for client in clients:
            if download:
                fed.wire.download(download)
            stored = private(client)
            kept = fed.method.first_private(client, fed.initial) if stored is None else stored
            fed.resident.row.copy_(start)
            fed.resident.space.pack({name: tensor for name, tensor in kept.items() if name not in received}, fed.resident.row)
            turn = Turn(
                fed.resident,
                fed.data.train(client),
                fed.config,
                round,
                client,
                received,
                kept,
                stored is None,
                augment=fed.augment,
                unused=fed.unused(client),
            )
            if self.spend is not None and private_level == "sample":
                turn.spend = partial(self.spend, client)
            try:
                fed.method.local_update(turn)
            except ClientDiverged as error:
                on_drop(error)
                continue
            payload = fed.method.upload(turn)
            if payload is not None and private_level == "client":
                payload = replace(payload, num_examples=None)  # every client weighs the same
            contexts = partial(self._context, round, client, received, turn.reported)
            upload = None if payload is None else fed.wire.upload(payload, contexts)
            if upload is not None and private_level != "none":
                check_upload(upload)
            yield TurnResult(client, upload, fed.method.keep(turn), turn.mean_loss, turn.num_examples, turn.reported)

    def _context(
        self, round: int, client: int, received: Mapping[str, Tensor], reported: dict[str, float], index: int
    ) -> TransformContext:
        fed = self.federation
        drawn = generator(fed.config.seed, round, client, "transform", index)
        return TransformContext(received, fed.layers, drawn, fed.linear, reported.__setitem__)
