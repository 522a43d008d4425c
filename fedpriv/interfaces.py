"""The interfaces of a method's two parts, and of what they use.

A method consists of a client part, its *objective* (the loss and the optimisation step), and a server part, its *aggregation*
(how uploads become the next model). Both derive from :class:`Part`: they have options, may send statistics besides the model, and
may keep tensors on the client between rounds. Neither knows the round loop, the wire or the other part.
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
"""Optional role -> the option that adds it to a net, for error messages."""

Private = Mapping[str, Tensor]
"""A client's private state between rounds, by name."""

params = params_dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
"""Decorator for a class of options: a frozen dataclass that validates its values."""


@params
class NoParams:
    """No options."""


@dataclass(frozen=True)
class Phase:
    """A phase of local training.

    Attributes:
        trains: the roles that are trained; the others are frozen and in evaluation mode.
        epochs: passes over the client's data.
        steps: exact number of steps, which replaces ``epochs``.
        lr: learning rate; ``None``: ``train.lr``.
        plain: SGD without momentum, weight decay or gradient clipping, even if ``train.optimizer`` names another optimiser.
    """

    trains: frozenset[str]
    epochs: int
    steps: int | None = None
    lr: float | None = None
    plain: bool = False


def phase(*trains: str, epochs: int, steps: int | None = None, lr: float | None = None, plain: bool = False) -> Phase:
    """A phase that trains the given roles, by default all: ``phase("encoder", epochs=5)``."""
    return Phase(frozenset(trains or ROLES), epochs, steps, lr, plain)


@dataclass(frozen=True)
class PhaseResult:
    """A completed phase: the roles it trained, its number of steps, and its learning rate (after the warm-up, and before
    ``train.local_lr_schedule``)."""

    roles: frozenset[str]
    steps: int
    lr: float


PROXIMAL = "proximal"
"""Key in :attr:`LocalUpdate.memo`: the weight mu, a scalar, of an objective's proximal term to the start; FedNova reads it."""


CLASS_WEIGHTS = "class_weights"
"""Key in :attr:`LocalUpdate.memo`: :attr:`Step.class_weights`."""


@dataclass(frozen=True)
class Context:
    """What a part may know about the run.

    Attributes:
        classes: number of the net's outputs C, which are classes unless ``numbers``.
        numbers: whether labels are numbers, of which the net predicts one.
        projection_dim: width k of ``Outputs.projection``.
        new_row: label (such as a client's number) -> a freshly initialised model ``(p,)`` for it.
        generator: purpose -> a new random generator, seeded from the run's seed.
        norms: names of all tensors (scales, shifts, running statistics) of BatchNorm layers, and of InstanceNorm layers with
            running statistics.
        layers: the net's parameter names in forward order (:mod:`fedpriv.models.order`).
        apart: parameters that the logits do not depend on; they stand first in ``layers``, and code that counts layers skips
            them.
        masked: names of the net's tensors that a mask removes from every upload.
        hides: wire name of a statistic -> whether a mask removes it.
        mean_samples: mean number of training samples of the clients that hold any.
        registered: number of registered clients that hold training data, in this round or not.
        class_weights: of each class ``(C,)`` in the cross-entropy (``train.class_weights``); ``None``: all are equal.
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
    class_weights: Tensor | None = None
    numbers: bool = False


@dataclass(frozen=True)
class Step:
    """The inputs of a loss, for one batch.

    Attributes:
        labels: ``(B,)`` int64; of a regression standardised numbers, float32.
        outputs: the outputs of the model in training, with gradient.
        parameters: the model's parameters by name, with gradient.
        received: the round's download, by name; constant.
        trains: the roles that this phase trains.
        teacher: name of a frozen model (:meth:`LocalUpdate.freeze`) -> its outputs on the same augmented batch, without gradient.
        views: the outputs for each of the :attr:`Objective.views` augmented views of the batch, ``outputs`` first.
        memo: :attr:`LocalUpdate.memo`.
        class_weights: weight of each class ``(C,)`` in the cross-entropy (``train.class_weights``); ``None``: all are equal.
    """

    labels: Tensor
    outputs: Outputs
    parameters: Mapping[str, Tensor]
    received: Mapping[str, Tensor]
    trains: frozenset[str]
    teacher: Callable[[str], Outputs]
    views: Sequence[Outputs] = ()
    memo: Mapping[str, Tensor] = field(default_factory=dict)
    class_weights: Tensor | None = None


Loss = Callable[[Step], Tensor]
"""The scalar to minimise, from a batch."""

_STACKABLE: set[object] = set()
LossFunction = TypeVar("LossFunction", bound=Callable[..., Tensor])


def stackable(loss: LossFunction) -> LossFunction:
    """Decorator for a loss (function or method) that can be computed for K clients in one call.

    Such a loss reads only ``step.labels``, ``outputs``, ``views``, ``received`` and teachers, and works along their last
    dimensions: with labels ``(B,)`` and outputs ``(B, ...)`` it returns a scalar, with ``(K, B)`` and ``(K, B, ...)`` the K
    clients' losses ``(K,)``. It may also read ``step.trains``, and test which names are in ``step.memo``. All other losses go
    through ``torch.func.vmap``, which costs about as much time as the layers of a small net.

    An overriding function does not inherit the declaration. A method's loss that adds to its objective's is stackable only if
    both are. A loss that reads anything else, or whose K values differ from those of single clients, is an error at its first
    use.
    """
    _STACKABLE.add(loss)
    return loss


def is_stackable(loss: Loss) -> bool:
    """Whether a loss (a function or a bound method) is declared :func:`stackable`."""
    objective = getattr(getattr(loss, "__self__", None), "objective", None)
    return getattr(loss, "__func__", loss) in _STACKABLE and (objective is None or is_stackable(objective.loss))


class Learner(Protocol):
    """A model in training: its state and its gradient as flat rows ``(p,)``, and an optimiser, which starts anew in each phase
    unless ``train.keep_optimizer``."""

    row: Tensor
    """The model's state; writing to it changes the model."""
    grad: Tensor
    """The gradient of the last :meth:`backward` or :meth:`differentiate`; defined for the trained roles only."""
    lr: float
    """Learning rate of the next :meth:`descend`; warm-up and ``train.local_lr_schedule`` change it."""
    trains: frozenset[str]
    """The roles that are trained."""

    def differentiate(self, batch: Batch, loss: Loss) -> Tensor:
        """Set ``grad`` to the gradient of a loss on a batch, and return the loss, detached.

        The batch is processed in ``train.accumulate`` chunks; with more than one, the loss must be a mean over samples.
        """

    def backward(self, value: Tensor) -> None:
        """Set ``grad`` to the gradient of a scalar."""

    def descend(self) -> None:
        """One step of the optimiser along ``grad``."""

    def step(self, batch: Batch, loss: Loss) -> Tensor:
        """:meth:`differentiate`, then :meth:`descend`; clients that train together need only one request for both."""


class Batch(Protocol):
    """The samples of one step."""

    @property
    def labels(self) -> Tensor:
        """``(B,)``, as of :class:`Step`."""

    def forward(self, learner: Learner) -> Step:
        """Outputs of a model in training mode, with gradient, as the inputs of a loss."""

    def forward_no_grad(self, learner: Learner) -> Outputs:
        """Outputs of a model in training mode, without gradient; BatchNorm's running statistics do not change."""

    def split(self, parts: int) -> Sequence[Batch]:
        """Split the batch into ``parts`` smaller ones of nearly equal size."""


class LocalUpdate(Protocol):
    """The local training of one client in one round: what a method can read, and what it can do."""

    round: int
    client: int
    num_examples: int
    received: Mapping[str, Tensor]
    """The round's download, by name."""
    private: Private
    """The client's private state, as its last local update left it (before the first: :meth:`Part.initial_private`)."""
    first_time: bool
    """Whether the client trains for the first time."""
    unused: frozenset[str]
    """Names of the net's tensors that the client's data do not affect: for a client without images, the image branch."""
    start: Tensor
    """``(p,)``: the model before training, from the download and the client's private tensors."""
    row: Tensor
    """``(p,)``: the client's current model; writing to it changes the model."""
    memo: dict[str, Tensor]
    """Storage for an objective during this local update, such as a weight or a row; discarded afterwards."""
    steps: int
    """SGD steps so far."""
    phase_results: list[PhaseResult]
    """The phases so far."""
    mean_loss: float
    """Mean loss of the last local epoch, in nats; NaN before the first epoch."""

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """In :meth:`Part.keep`: the client's upload as the server receives it, after all transforms; empty without an upload."""

    @property
    def labels(self) -> Tensor:
        """``(n_i,)``: the labels of the training data, in order.

        Raises:
            UsageError: under sample-level DP before training is over; the same holds for :meth:`embed`, :meth:`accuracy` and
                :meth:`gradient`. Epsilon covers only clipped gradients of single samples.
        """

    @property
    def learner(self) -> Learner:
        """The client's model; available within a phase."""

    @property
    def companion(self) -> Learner:
        """A second model of the same architecture, initially ``start``; available within a phase."""

    def report(self, name: str, value: float) -> None:
        """Report a metric; its mean over the clients goes into the round's record.

        Args:
            name: such as ``mine/spread``; the names of the server's own metrics, such as ``accuracy``, are refused.
        """

    def train(self, phase: Phase, loss: Loss, rule: StepRule | None = None) -> None:
        """Train for one phase with its own optimiser; ``rule`` (usually the objective) may define its own optimisation step."""

    def freeze(self, name: str, state: Mapping[str, Tensor] | Tensor | None = None) -> None:
        """Store a copy of the current model as the teacher ``name``; tensors or a row in ``state`` replace those of the model."""

    def embed(self) -> Outputs:
        """Outputs of the current model for all training data, in order, without augmentation, in evaluation mode."""

    def accuracy(self) -> float:
        """Accuracy in [0, 1] of the current model on the training data, in evaluation mode."""

    def gradient(self, reduction: str = "mean") -> Tensor:
        """``(p,)``: gradient of the loss on the labels (``mean`` or ``sum``) over all training data, in evaluation mode."""

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Tensors of the current model by name, as views."""


class StepRule(Protocol):
    """How a phase trains on its batches; :class:`fedpriv.objectives.base.Objective` documents the members."""

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
    """The client part or the server part of a method; by default it sends and keeps nothing besides the model."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    Params: ClassVar[type[Any]] = NoParams
    reads: ClassVar[frozenset[str]] = frozenset()
    """Bare names of statistics that the other part must provide (``variate``, not ``statistic.variate/encoder.fc.weight``).

    The other part returns them from :meth:`statistics` or ``Aggregation.server_statistics``.
    """
    writes: ClassVar[frozenset[str]] = frozenset()
    """Bare names of the statistics that this part provides."""
    suggests: ClassVar[Mapping[str, Any]] = {}
    """Values for config keys that are null, such as ``model.predictor``; override :meth:`suggested` if they depend on options."""
    sends: ClassVar[str] = ""
    """For listings: what this part sends besides the model, with size and direction; empty: nothing."""
    keeps: ClassVar[str] = ""
    """For listings: the private state that this part adds to a client; empty: none."""
    no_dp: ClassVar[str] = ""
    """Why this part cannot be used with sample-level DP; empty: it can."""
    needs_classes: ClassVar[str] = ""
    """Why this part cannot be used where labels are numbers; empty: it can, unless it is an objective with a loss for classes
    (:meth:`fedpriv.objectives.base.Objective.why_classes`)."""

    def __init__(self, params: Any, context: Context) -> None:
        self.params, self.context = params, context

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        """Options without effect, given the others: name -> the setting that disables it. Setting such an option is an error."""
        return {}

    @classmethod
    def suggested(cls, params: Any) -> Mapping[str, Any]:
        """The values of :attr:`suggests` that apply with these options."""
        return cls.suggests

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know about a run with these options; a run shows these lines as warnings and records them."""
        return ()

    def begin(self, update: LocalUpdate) -> None:
        """Called on the client before training."""

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        """Tensors to upload besides the model, by full name (:func:`fedpriv.wire.statistic`); called after training."""
        return {}

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        """The dtype, shape and range of each of :meth:`statistics`, by full name.

        The server refuses an upload that differs. Statistics about private tensors may be included; the method removes them.

        Args:
            received: the client's download, by name.
            steps: upper bound on the SGD steps of the local update.
        """
        return {}

    def initial_private(self, initial: Tensor) -> dict[str, Tensor]:
        """This part's private state of a client before its first local update, given the initial model ``(p,)``."""
        return {}

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        """This part's private state of the client until its next local update; its names must differ from the net's.

        Called at the very end, when :attr:`LocalUpdate.sent` is known.
        """
        return {}
