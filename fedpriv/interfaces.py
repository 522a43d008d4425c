"""The interfaces of a method's two halves, and of what they use.

A method has a client's half, its *objective* (the loss and the optimisation step), and a server's half, its *aggregation*
(how uploads become the next model). Both are a :class:`Part`: they have options, may add statistics to a payload and may keep
tensors on the client between rounds. Neither knows the loop, the wire or the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as params_dataclass
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.models.net import ROLES, Outputs
from fedpriv.parameters import ParameterSpace

ROLE_OPTIONS = {"projector": "model.projection=128", "predictor": "model.predictor=64"}
"""By optional role: the option that adds it to a net, for messages."""

Private = Mapping[str, Tensor]
"""A client's private state between rounds, by name."""

params = params_dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
"""Decorator of a part's options: a frozen dataclass whose values are checked."""


@params
class NoParams:
    """A part without options of its own."""


@dataclass(frozen=True)
class Phase:
    """A phase of local training: the trained roles (all others are frozen and in evaluation mode) and its length.

    Attributes:
        epochs: passes over the client's data.
        steps: exactly so many steps, in as many epochs as they take; ``None``: all steps of the epochs.
        lr: another learning rate than ``train.lr``.
    """

    trains: frozenset[str]
    epochs: int
    steps: int | None = None
    lr: float | None = None


def phase(*trains: str, epochs: int, steps: int | None = None, lr: float | None = None) -> Phase:
    """``phase("encoder", epochs=5)``; without roles: all of them."""
    return Phase(frozenset(trains or ROLES), epochs, steps, lr)


@dataclass(frozen=True)
class Trained:
    """The result of a phase: the trained roles, the number of steps, and the learning rate (after the warm-up)."""

    roles: frozenset[str]
    steps: int
    lr: float


PROXIMAL = "proximal"
"""The note (:attr:`ClientTurn.memo`) of an objective that pulls the model to where the turn started: the factor, a scalar. The
other half may count with it (FedNova)."""


@dataclass(frozen=True)
class Context:
    """The facts of a run that a part may use.

    Attributes:
        classes: number of classes C.
        projection_dim: width k of ``Outputs.projection``.
        new_row: initial model row ``(p,)`` drawn for a label (e.g. a client id) instead of for the run.
        generator: a fresh generator of the run for a purpose.
        norms: names of the tensors of BatchNorm layers, by module type: scales, shifts and running statistics.
        layers: the net's parameter names in forward order.
        mean_samples: number of training samples of a client, averaged over those that hold any.
    """

    config: RunConfig
    space: ParameterSpace
    classes: int
    projection_dim: int
    new_row: Callable[[str], Tensor]
    generator: Callable[[str], torch.Generator]
    norms: frozenset[str] = frozenset()
    layers: tuple[str, ...] = ()
    mean_samples: float = 1.0


@dataclass(frozen=True)
class Step:
    """The inputs of a loss: one batch under the current parameters.

    Attributes:
        labels: ``(B,)`` int64.
        outputs: the trained net's outputs on the batch, with gradient.
        parameters: the trained net's parameters by name, with gradient.
        received: what the server sent this round, by name; constant.
        trains: the roles that this phase trains.
        teacher: the outputs, on the same (equally augmented) batch and without gradient, of a model frozen by name.
        views: the outputs on every augmented view of the batch, ``outputs`` first; more than one where the objective asks for it.
        memo: the turn's :attr:`ClientTurn.memo`.
    """

    labels: Tensor
    outputs: Outputs
    parameters: Mapping[str, Tensor]
    received: Mapping[str, Tensor]
    trains: frozenset[str]
    teacher: Callable[[str], Outputs]
    views: Sequence[Outputs] = ()
    memo: Mapping[str, Tensor] = field(default_factory=dict)


Loss = Callable[[Step], Tensor]
"""A scalar of a step."""

_STACKABLE: set[object] = set()
LossFunction = TypeVar("LossFunction", bound=Callable[..., Tensor])


def stackable(loss: LossFunction) -> LossFunction:
    """Declare that a loss, a function or a method, can be called once for K clients that train together.

    It is then a function of ``step.labels``, ``outputs`` and ``views`` alone (and of ``received``, which is the same for all),
    along their last dimensions: of labels ``(K, B)`` and outputs ``(K, B, ...)`` it makes the K losses ``(K,)``, of ``(B,)`` and
    ``(B, ...)`` a scalar. This saves ``torch.func.vmap``, by which all other losses are computed and which costs as much as a
    small net's layers.

    It holds for this function alone: a subclass that overrides it declares its own or has none. Where clients train together, a
    loss that reads more than it declares is an error, and so is one whose K losses are not those of the clients; this is
    compared when it is first used.
    """
    _STACKABLE.add(loss)
    return loss


def is_stackable(loss: Loss) -> bool:
    """Whether a loss, which may be a bound method, is declared :func:`stackable`."""
    return getattr(loss, "__func__", loss) in _STACKABLE


class Learner(Protocol):
    """A model in training: its state and gradient as rows ``(p,)``, and its optimiser, fresh in each phase."""

    row: Tensor
    """The model itself: writing it moves the model."""
    grad: Tensor
    """Of the last :meth:`backward`; only the trained roles' entries mean anything."""
    lr: float
    """Of the next :meth:`descend`; it rises during a warm-up."""
    trains: frozenset[str]
    """The roles that it trains."""

    def differentiate(self, batch: Batch, loss: Loss) -> Tensor:
        """The gradient of a loss on a batch, in place of the one before; the loss, detached.

        In ``train.accumulate`` parts: the loss must then be a mean over samples.
        """

    def backward(self, value: Tensor) -> None:
        """The gradient of a scalar, in place of the one before."""

    def descend(self) -> None:
        """One step of the optimiser along ``grad``."""

    def step(self, batch: Batch, loss: Loss) -> Tensor:
        """:meth:`differentiate` and :meth:`descend`, at once for all clients that train together; the loss, detached."""


class Batch(Protocol):
    """The samples of one step."""

    @property
    def labels(self) -> Tensor:
        """``(B,)`` int64."""

    def forward(self, learner: Learner) -> Step:
        """Run the batch through a model in training mode, with gradient."""

    def forward_no_grad(self, learner: Learner) -> Outputs:
        """Outputs in training mode without side effects: no gradient, and BatchNorm's running statistics stay as they were."""

    def split(self, parts: int) -> Sequence[Batch]:
        """The samples in so many nearly equal parts."""


class ClientTurn(Protocol):
    """One client's turn in one round, as a method sees it."""

    round: int
    client: int
    num_examples: int
    received: Mapping[str, Tensor]
    """The download of this round, by name."""
    private: Private
    """The client's private state from its last turn (:meth:`Part.first_kept` at its first)."""
    first_time: bool
    labels: Tensor
    """``(n_i,)`` labels of the training data, in order."""
    unused: frozenset[str]
    """Tensors of the net that its data never reach: of a client without images, the image branch."""
    start: Tensor
    """``(p,)`` the model at the start of the turn: what was received, and the client's own parts."""
    row: Tensor
    """``(p,)`` the client's model; writing it moves the model."""
    memo: dict[str, Tensor]
    """Notes of an objective during the turn, such as a step size or a row; discarded after it."""
    steps: int
    """SGD steps taken so far in this turn."""
    trained: list[Trained]
    """Its phases so far."""
    mean_loss: float
    """Mean loss of the last local epoch, in nats; NaN before the first."""

    @property
    def learner(self) -> Learner:
        """The client's model within a phase."""

    @property
    def companion(self) -> Learner:
        """Within a phase, a second model of the same net, for objectives that train two; its row begins as ``start``."""

    def report(self, name: str, value: float) -> None:
        """Report a number; the round's record has its mean over the clients."""

    def train(self, phase: Phase, loss: Loss, rule: StepRule | None = None) -> None:
        """Run a phase on the client's training data, with a fresh optimiser; ``rule`` may change what a step is."""

    def freeze(self, name: str, state: Mapping[str, Tensor] | Tensor | None = None) -> None:
        """Keep the present model (with ``state`` laid over it, or the row ``state``) as the constant teacher ``name``."""

    def embed(self) -> Outputs:
        """Outputs of the present model on all training data, in order, without augmentation, in evaluation mode."""

    def accuracy(self) -> float:
        """Share in [0, 1] of the training data that the present model classifies right, in evaluation mode."""

    def gradient(self, reduction: str = "mean") -> Tensor:
        """``(p,)``: gradient of the cross-entropy (``mean`` or ``sum``) over all training data, in evaluation mode."""

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Views of the present model."""


class StepRule(Protocol):
    """How a phase trains on its batches (:class:`fedpriv.objectives.base.Objective` explains each member)."""

    @property
    def views(self) -> int: ...
    @property
    def batches_per_step(self) -> int: ...
    @property
    def smallest_batch(self) -> int: ...
    @property
    def uses_companion(self) -> bool: ...

    def epoch(self, turn: ClientTurn, epoch: int) -> None: ...
    def step(self, turn: ClientTurn, batch: Batch, loss: Loss) -> Tensor: ...
    def correct(self, turn: ClientTurn, learner: Learner) -> None: ...


class Part:
    """Half of a method; by default it adds nothing and keeps nothing."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    Params: ClassVar[type[Any]] = NoParams
    reads: ClassVar[frozenset[str]] = frozenset()
    """Statistics (without a tensor's name) that the other half must provide: :meth:`statistics` or ``Aggregation.down``."""
    writes: ClassVar[frozenset[str]] = frozenset()
    """Statistics that this half provides."""
    suggests: ClassVar[Mapping[str, Any]] = {}
    """Config keys, such as ``model.predictor``, and what they become where the config leaves them open (null)."""
    sends: ClassVar[str] = ""
    """Tensors that it adds to the wire besides the model, in words, with size and direction; empty: none."""
    keeps: ClassVar[str] = ""
    """Private state that it adds to a client, in words; empty: none."""
    no_dp: ClassVar[str] = ""
    """Why it cannot be used with sample-level DP; empty: it can."""

    def __init__(self, params: Any, context: Context) -> None:
        self.params, self.context = params, context

    def begin(self, turn: ClientTurn) -> None:
        """Called on the client before training."""

    def statistics(self, turn: ClientTurn) -> dict[str, Tensor]:
        """The upload besides the model, by full name (:func:`fedpriv.wire.statistic`); called after training."""
        return {}

    def first_kept(self, initial: Tensor) -> dict[str, Tensor]:
        """This half's private state of a client before its first turn, given the initial model ``(p,)``."""
        return {}

    def keep(self, turn: ClientTurn) -> dict[str, Tensor]:
        """This half's private state of the client until its next turn; names must not be those of the net."""
        return {}
