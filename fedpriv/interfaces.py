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
from fedpriv.wire import Form

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
        steps: the exact number of steps, in as many epochs as they take; ``None``: all steps of the epochs.
        lr: a learning rate in place of ``train.lr``.
        plain: steps of SGD alone, whatever ``train`` says of the optimiser, momentum, weight decay and the gradient's bound.
    """

    trains: frozenset[str]
    epochs: int
    steps: int | None = None
    lr: float | None = None
    plain: bool = False


def phase(*trains: str, epochs: int, steps: int | None = None, lr: float | None = None, plain: bool = False) -> Phase:
    """A phase: ``phase("encoder", epochs=5)``; without roles, all of them are trained."""
    return Phase(frozenset(trains or ROLES), epochs, steps, lr, plain)


@dataclass(frozen=True)
class PhaseResult:
    """The result of a phase: the trained roles, the number of steps, and the learning rate (after the warm-up)."""

    roles: frozenset[str]
    steps: int
    lr: float


PROXIMAL = "proximal"
"""The note (:attr:`LocalUpdate.memo`) of an objective with a proximal term to the local update's start: its factor, a scalar. The
other half may use it (FedNova)."""


@dataclass(frozen=True)
class Context:
    """The facts of a run that a part may use.

    Attributes:
        classes: number of classes C.
        projection_dim: width k of ``Outputs.projection``.
        new_row: label (e.g. a client id) -> an initial model row ``(p,)`` drawn for it.
        generator: purpose -> a fresh random generator of the run.
        norms: names of the tensors of BatchNorm layers, and of InstanceNorm with running statistics, by module type: scales,
            shifts and these statistics.
        layers: the net's parameter names in forward order (:mod:`fedpriv.models.order`).
        apart: those of ``layers`` that the logits do not depend on. They come first, and do not count as layers.
        masked: names of the net's tensors that no client sends, because a mask removes them.
        hides: whether a mask removes a statistic of that name.
        mean_samples: number of training samples of a client, averaged over those that hold any.
        registered: number K of registered clients that hold training data; those of a round are among them.
    """

    config: RunConfig
    space: ParameterSpace
    classes: int
    projection_dim: int
    new_row: Callable[[str], Tensor]
    generator: Callable[[str], torch.Generator]
    norms: frozenset[str] = frozenset()
    layers: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    masked: frozenset[str] = frozenset()
    hides: Callable[[str], bool] = lambda name: False
    mean_samples: float = 1.0
    registered: int = 1


@dataclass(frozen=True)
class Step:
    """The inputs of a loss: one batch under the current parameters.

    Attributes:
        labels: ``(B,)`` int64.
        outputs: the trained net's outputs on the batch, with gradient.
        parameters: the trained net's parameters by name, with gradient.
        received: the tensors that the server sent this round, by name; constant.
        trains: the roles that this phase trains.
        teacher: name of a frozen model -> its outputs on the same augmented batch, without gradient.
        views: the outputs on every augmented view of the batch, ``outputs`` first; as many as :attr:`Objective.views`.
        memo: the local update's :attr:`LocalUpdate.memo`.
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

    It is then a function of ``step.labels``, ``outputs``, ``views`` and teachers alone (and of ``received``, which is the same
    for all), along their last dimensions: of labels ``(K, B)`` and outputs ``(K, B, ...)`` it makes the K losses ``(K,)``, of
    ``(B,)`` and ``(B, ...)`` a scalar. This saves ``torch.func.vmap``, by which all other losses are computed and which costs as
    much as a small net's layers.

    It holds for this function alone: a subclass that overrides it declares its own or has none. A method's loss, which adds to
    its objective's, is stackable where that is too. Where clients train together, a loss that reads more than it declares is an
    error, and so is one whose K losses are not those of the clients; this is compared when it is first used.
    """
    _STACKABLE.add(loss)
    return loss


def is_stackable(loss: Loss) -> bool:
    """Whether a loss, which may be a bound method, is declared :func:`stackable`."""
    objective = getattr(getattr(loss, "__self__", None), "objective", None)
    return getattr(loss, "__func__", loss) in _STACKABLE and (objective is None or is_stackable(objective.loss))


class Learner(Protocol):
    """A model in training: its state and gradient as rows ``(p,)``, and its optimiser, fresh in each phase."""

    row: Tensor
    """The model's row: writing to it changes the model."""
    grad: Tensor
    """The gradient of the last :meth:`backward`; valid for the trained roles only."""
    lr: float
    """Of the next :meth:`descend`; it rises during a warm-up."""
    trains: frozenset[str]
    """The roles that it trains."""

    def differentiate(self, batch: Batch, loss: Loss) -> Tensor:
        """Replace ``grad`` by the gradient of a loss on a batch; returns the loss, detached.

        The batch is processed in ``train.accumulate`` parts; with several, the loss must be a mean over samples.
        """

    def backward(self, value: Tensor) -> None:
        """Replace ``grad`` by the gradient of a scalar."""

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
        """Outputs in training mode without gradient, and without updating BatchNorm's running statistics."""

    def split(self, parts: int) -> Sequence[Batch]:
        """The samples in ``parts`` parts of nearly equal size."""


class LocalUpdate(Protocol):
    """One client's local update in one round: what a method can see and do."""

    round: int
    client: int
    num_examples: int
    received: Mapping[str, Tensor]
    """The download of this round, by name."""
    private: Private
    """The client's private state from its last local update (:meth:`Part.initial_private` at its first)."""
    first_time: bool
    unused: frozenset[str]
    """Tensors of the net on which its data have no effect: for a client without images, the image branch."""
    start: Tensor
    """``(p,)`` the model at the start of the local update: the received tensors, and the client's private ones."""
    row: Tensor
    """``(p,)`` the client's model; writing to it changes the model."""
    memo: dict[str, Tensor]
    """Notes of an objective during the local update, such as a step size or a row; discarded after it."""
    steps: int
    """SGD steps taken so far in this local update."""
    phase_results: list[PhaseResult]
    """Its phases so far."""
    mean_loss: float
    """Mean loss of the last local epoch, in nats; NaN before the first."""

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """In :meth:`Part.keep`, its upload as it arrives, after all transforms, by name; empty where it sends none."""

    @property
    def labels(self) -> Tensor:
        """``(n_i,)`` labels of the training data, in order.

        As the outputs, the accuracy and the gradient on all of them, they are refused under sample-level DP until training is
        over (:class:`UsageError`): epsilon covers clipped gradients of single samples alone.
        """

    @property
    def learner(self) -> Learner:
        """The client's model within a phase."""

    @property
    def companion(self) -> Learner:
        """A second model of the same net within a phase, for objectives that train two; its initial row is ``start``."""

    def report(self, name: str, value: float) -> None:
        """Report a number; the round's record has its mean over the clients.

        Args:
            name: such as ``mine/spread``; the server refuses those of its own numbers, such as ``accuracy``.
        """

    def train(self, phase: Phase, loss: Loss, rule: StepRule | None = None) -> None:
        """Run a phase on the client's training data, with a fresh optimiser; ``rule`` may replace the optimisation step."""

    def freeze(self, name: str, state: Mapping[str, Tensor] | Tensor | None = None) -> None:
        """Keep the present model (updated by the tensors ``state``, or the row ``state``) as the constant teacher ``name``."""

    def embed(self) -> Outputs:
        """Outputs of the present model on all training data, in order, without augmentation, in evaluation mode."""

    def accuracy(self) -> float:
        """Accuracy in [0, 1] of the present model on the training data, in evaluation mode."""

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

    def epoch(self, update: LocalUpdate, epoch: int) -> None: ...
    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor: ...
    def correct(self, update: LocalUpdate, learner: Learner) -> None: ...


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
    """Values for config keys, such as ``model.predictor``, that the config leaves open (null); where they depend on options,
    :meth:`suggested` says so."""
    sends: ClassVar[str] = ""
    """Tensors that it sends besides the model, in words, with size and direction; empty: none."""
    keeps: ClassVar[str] = ""
    """Private state that it adds to a client, in words; empty: none."""
    no_dp: ClassVar[str] = ""
    """Why it cannot be used with sample-level DP; empty: it can."""

    def __init__(self, params: Any, context: Context) -> None:
        self.params, self.context = params, context

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        """Options that do nothing beside the others: by name, the setting that makes it so. One that a user sets is refused."""
        return {}

    @classmethod
    def suggested(cls, params: Any) -> Mapping[str, Any]:
        """Those of :attr:`suggests` that hold with these options."""
        return cls.suggests

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of a run with these options, a line each: a run warns of it and keeps it in its notes."""
        return ()

    def begin(self, update: LocalUpdate) -> None:
        """Called on the client before training."""

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        """The upload besides the model, by full name (:func:`fedpriv.wire.statistic`); called after training."""
        return {}

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        """The form of each of :meth:`statistics`, by full name, as the server knows it before they arrive.

        An upload whose statistics are not of these forms is refused. Statistics of tensors that a client keeps to itself may be
        among them: its method leaves them out.

        Args:
            received: what the client was sent, by name.
            steps: the most SGD steps that it can take in its local update.
        """
        return {}

    def initial_private(self, initial: Tensor) -> dict[str, Tensor]:
        """This half's private state of a client before its first local update, given the initial model ``(p,)``."""
        return {}

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        """This half's private state of the client until its next local update; names must not be those of the net.

        Called last, when what the client sends is known (:attr:`LocalUpdate.sent`).
        """
        return {}
