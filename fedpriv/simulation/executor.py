"""Who runs the clients' turns of a round. ``SequentialExecutor`` is the reference: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpriv.methods.base import Private
from fedpriv.seeding import generator
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.turn import ClientDiverged, Turn
from fedpriv.wire import Sealed, TransformContext


@dataclass(frozen=True)
class TurnResult:
    """What comes out of a client's turn: what was sent, what the client keeps (views, valid until the next turn), its loss."""

    client: int
    upload: Sealed | None
    kept: Mapping[str, Tensor]
    mean_loss: float
    num_examples: int


class SequentialExecutor:
    """Runs a round's clients one after another on the resident net."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

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
        device = fed.resident.device
        received = {name: tensor.to(device) for name, tensor in download.tensors().items()} if download else {}
        for client in clients:
            if download:
                fed.wire.download(download)
            stored = private(client)
            kept = fed.method.first_private(client, fed.initial) if stored is None else stored
            fed.resident.space.pack({**kept, **received}, fed.resident.row)
            turn = Turn(fed.resident, fed.data.train(client), fed.config, round, client, received, kept, stored is None)
            try:
                fed.method.local_update(turn)
            except ClientDiverged as error:
                on_drop(error)
                continue
            payload = fed.method.upload(turn)
            upload = payload and fed.wire.upload(payload, lambda i, client=client: self._context(round, client, i, received))  # type: ignore[misc]
            yield TurnResult(client, upload, fed.method.keep(turn), turn.mean_loss, turn.num_examples)

    def _context(self, round: int, client: int, index: int, received: Mapping[str, Tensor]) -> TransformContext:
        seed = self.federation.config.seed
        return TransformContext(received, self.federation.layers, generator(seed, round, client, "transform", index))
