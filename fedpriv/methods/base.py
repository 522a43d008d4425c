"""What a method is: which roles it shares, what each side keeps, and the four steps of a round.

A method never sees the loop, the wire or another client: it gets a :class:`ClientTurn` on the client's side and sealed
payloads on the server's. The defaults below are FedAvg's; a method overrides what its paper changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as params_dataclass
from torch import Tensor

from fedpriv.aggregation.mean import weighted_mean
from fedpriv.config import RunConfig
from fedpriv.models.net import ROLES, Outputs
from fedpriv.objectives.cross_entropy import cross_entropy
from fedpriv.objectives.step import Loss, Step
from fedpriv.parameters import ParameterSpace
from fedpriv.wire import Payload, Sealed

Private = Mapping[str, Tensor]
"""What a client keeps between rounds, by name."""

params = params_dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
"""Decorator of a method's options: a frozen dataclass whose values are checked."""


@params
class NoParams:
    """A method without options of its own."""


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: the roles that learn (all others are frozen and in evaluation mode) and for how long."""

    trains: frozenset[str]
    epochs: int


def phase(*trains: str, epochs: int) -> Phase:
    """``phase("encoder", epochs=5)``; without roles: all of them."""
    return Phase(frozenset(trains or ROLES), epochs)


@dataclass
class ServerState:
    """What the server keeps: the model as a row ``(p,)`` and whatever tables a method declares."""

    row: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)


class ClientTurn(Protocol):
    """One client's turn in one round, as a method sees it."""

    round: int
    client: int
    num_examples: int
    received: Mapping[str, Tensor]
    """What the server sent this round."""
    private: Private
    """What the client kept from its last turn (:meth:`Method.first_private` at its first)."""
    first_time: bool
    labels: Tensor
    """``(n_i,)`` labels of the training data, in order."""

    def train(self, phase: Phase, loss: Loss) -> None:
        """Run a phase on the client's training data, with a fresh optimiser."""

    def freeze(self, name: str, state: Mapping[str, Tensor] | None = None) -> None:
        """Keep the present model (with ``state`` laid over it) as the constant teacher ``name`` of this turn."""

    def embed(self) -> Outputs:
        """Outputs of the present model on all training data, in order, without augmentation, in evaluation mode."""

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Views of the present model."""


@dataclass(frozen=True)
class Context:
    """The facts of a run that a method may use.

    Attributes:
        classes: number of classes C.
        projection_dim: width k of ``Outputs.projection``.
        new_row: initial model row ``(p,)`` drawn for a label (e.g. a client id) instead of for the run.
        generator: a fresh generator of the run for a purpose.
    """

    config: RunConfig
    space: ParameterSpace
    classes: int
    projection_dim: int
    new_row: Callable[[str], Tensor]
    generator: Callable[[str], torch.Generator]


class Method:
    """A federated method; see the module's docstring. Subclasses are registered with :func:`fedpriv.methods.register`."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    Params: ClassVar[type[Any]] = NoParams
    shared: ClassVar[frozenset[str]] = frozenset(ROLES)
    """The roles that cross the wire; the rest stays with the client."""
    buffers: ClassVar[Literal["average", "local"]] = "average"
    """What happens to the floating-point buffers of shared roles: averaged like weights, or kept by each client."""
    round_zero: ClassVar[bool] = False
    """Whether the initial model is sent to every client before the first round."""

    def __init__(self, params: Any, context: Context) -> None:
        self.params = params
        self.context = context
        self.train = context.config.train
        space = context.space
        self.shared_names = self.select_shared()
        self.private_names = tuple(name for name in space.names if name not in set(self.shared_names))
        tests_own = self.private_names and context.config.eval.state == "local_encoder"
        self.tested_names = space.names if tests_own else self.private_names
        """What a client is tested with of its own; the rest is the server's."""
        self.kept_names = self.tested_names
        """What a client keeps between rounds; a method may keep more than it tests with."""

    def select_shared(self) -> tuple[str, ...]:
        """The names of the tensors that cross the wire, in row order: by default those of the shared roles."""
        return self.context.space.select(self.shared, buffers=self.buffers == "average")

    # --- the server's side -------------------------------------------------------------------------------------------

    def start(self, row: Tensor) -> ServerState:
        """The server's state before the first round, from the initial model ``(p,)``."""
        return ServerState(row)

    def broadcast(self, server: ServerState) -> Payload | None:
        """Round 0: what every client is sent before the first round."""
        return Payload(self.context.space.unpack(server.row), round=0) if self.round_zero else None

    def participants(self, round: int, sampled: Sequence[int], everyone: Sequence[int]) -> Sequence[int]:
        """The clients of a round (1-based): by default those that the loop sampled."""
        return sampled

    def download(self, server: ServerState, round: int) -> Payload | None:
        """Server state -> what each participant is sent. ``None``: the method does not communicate."""
        return Payload(self.context.space.unpack(server.row, self.shared_names), round)

    def aggregate(self, server: ServerState, uploads: Sequence[Sealed]) -> ServerState:
        """The round's uploads, ordered by client -> the new server state. By default the mean weighted by examples (FedAvg)."""
        return ServerState(self._mean_row(server, uploads, [upload.num_examples or 0 for upload in uploads]), server.memory)

    def _mean_row(self, server: ServerState, uploads: Sequence[Sealed], weights: Sequence[float]) -> Tensor:
        # What no upload holds (private, or masked on the way) keeps the server's value to the bit; what only some hold is
        # averaged with the server's value in the others' place.
        space, names = self.context.space, set[str]()
        rows = server.row.repeat(len(uploads), 1)
        for row, upload in zip(rows, uploads, strict=True):
            tensors = upload.tensors()
            space.pack(tensors, row)
            names |= {name for name in tensors if name in space}
        return space.pack(space.unpack(weighted_mean(rows, weights), names), server.row.clone())

    # --- the client's side -------------------------------------------------------------------------------------------

    def first_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        """What a client that never took part keeps, given the initial model ``(p,)``."""
        return self.context.space.unpack(initial, self.kept_names)

    def phases(self, round: int) -> Sequence[Phase]:
        """The schedule of local training."""
        return [phase(epochs=self.train.local_epochs)]

    def local_loss(self, step: Step) -> Tensor:
        """The scalar that a client minimises."""
        return cross_entropy(step)

    def local_update(self, turn: ClientTurn) -> None:
        """A client's training in one round."""
        for stretch in self.phases(turn.round):
            turn.train(stretch, self.local_loss)

    def upload(self, turn: ClientTurn) -> Payload | None:
        """Client state -> what is sent (before transforms)."""
        return Payload(turn.state(self.shared_names), turn.round, turn.client, num_examples=turn.num_examples)

    def keep(self, turn: ClientTurn) -> dict[str, Tensor]:
        """What the client keeps for its next turn."""
        return turn.state(self.kept_names)

    # --- evaluation --------------------------------------------------------------------------------------------------

    def client_state(self, server: ServerState, private: Private) -> dict[str, Tensor]:
        """The model that a client is tested with: the new server model and the client's own parts."""
        own = {name: private[name] for name in self.tested_names}
        return {**self.context.space.unpack(server.row), **own}

    def adaptation(self, round: int) -> Sequence[Phase]:
        """Training on a copy before a client is tested in this round; it changes no state. By default none."""
        return ()

    @property
    def averaged_rounds(self) -> int:
        """How many of the last rounds make up the reported accuracy."""
        config = self.context.config
        return min(config.eval.last, config.train.rounds)

    @property
    def tested_from(self) -> int:
        """The first round in which the method is tested as it is meant; before that, fine-tuning may be left out."""
        return 1

    @property
    def has_global_model(self) -> bool:
        """Whether the server alone holds a complete model, so that a server-side test set makes sense."""
        return not self.private_names
