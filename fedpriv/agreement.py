"""What server and clients agree on before the first round; each side builds it from the config and a few declared facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.config import RunConfig
from fedpriv.data.encoding import NumberColumn
from fedpriv.defenses import sent_names
from fedpriv.errors import UsageError
from fedpriv.methods.base import Context, Method
from fedpriv.methods.build import build_method
from fedpriv.models.net import Net, norms_with_statistics
from fedpriv.models.order import Order, order_of
from fedpriv.models.starting import Given, start_from_given
from fedpriv.models.state import find_hidden_state
from fedpriv.objectives.cross_entropy import balanced_weights
from fedpriv.parameters import RUNNING, ParameterSpace, constant_buffers
from fedpriv.privacy.accountant import History
from fedpriv.privacy.canaries import Canaries
from fedpriv.samples import Modality
from fedpriv.scores.tasks import Task, task_of
from fedpriv.seeding import generator, global_rng
from fedpriv.wire import Expected, Transform


@dataclass(frozen=True)
class Declared:
    """What clients declare about their data before the first round.

    Attributes:
        classes: number of classes; 0 of a regression.
        trainable: the clients that hold training data, in ascending order.
        mean_samples: their mean number of training samples.
        most_samples: their largest number of training samples.
        lacks: client -> the modality that none of its image-text pairs has.
        class_counts: number of training labels of each class over all clients ``(C,)``; ``None``: they were not asked for.
        class_names: of a deployment's classes; none: they are those of each client's data set.
        statistics_noise: noise multiplier of the statistics before round 1, under differential privacy; 0: there were none.
        target: of a regression, the column of the labels.
    """

    classes: int
    trainable: Sequence[int]
    mean_samples: float
    most_samples: int
    lacks: Mapping[int, Modality] = field(default_factory=dict)
    class_counts: tuple[int, ...] | None = None
    class_names: tuple[str, ...] = ()
    statistics_noise: float = 0.0
    target: NumberColumn | None = None

    @property
    def task(self) -> Task:
        """What is predicted."""
        return task_of(self.classes, self.target)


@dataclass
class Agreement:
    """The setup of a run that all sides share; it contains no client's data and no state of the server.

    Attributes:
        config: the complete config.
        method: the federated method.
        transforms: the transforms of an upload before it is sealed, in order.
        initial: the initial model ``(p,)``, drawn from the seed, or given.
        declared: what clients declare about their data.
        order: the order of the net's layers.
        constants: persistent floating-point buffers that training does not change, by name; each side has its net's.
        given: the weights of the file ``model.init``, which are in the initial model.
        drawn: the initial model without them.
    """

    config: RunConfig
    method: Method
    transforms: Sequence[Transform]
    initial: Tensor
    declared: Declared
    order: Order
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    given: Given = field(default_factory=Given)
    drawn: Tensor | None = None

    @property
    def linear(self) -> tuple[str, ...]:
        """Names of the fully connected layers that the logits depend on, in forward order."""
        return self.order.linear

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the net's trainable parameters, in forward order."""
        return self.order.layers

    @property
    def space(self) -> ParameterSpace:
        """The layout of the net's state."""
        return self.method.context.space

    @property
    def trainable(self) -> Sequence[int]:
        """The clients that hold training data, in ascending order."""
        return self.declared.trainable

    @property
    def spent_before(self) -> History:
        """What every client has spent on statistics before round 1: the Gaussian mechanism on all of its samples, once."""
        noise = self.declared.statistics_noise
        return ((noise, 1.0, 1),) if noise else ()

    def unused(self, client: int) -> frozenset[str]:
        """Names of the net's tensors that a client's data do not affect: the branch of a modality that it lacks."""
        branch = f"encoder.{self.declared.lacks.get(client)}."
        return frozenset(name for name in self.space.names if name.startswith(branch))

    @property
    def sent_names(self) -> tuple[str, ...]:
        """Names of the net's tensors that clients send: those that the method shares and no mask removes.

        Raises:
            UsageError: a mask does not fit the net.
        """
        return sent_names(self.method.shared_names, self.transforms, self.linear)

    @cached_property
    def canaries(self) -> Canaries | None:
        """The run's canaries, or ``None``.

        Raises:
            UsageError: there are more canaries than parameters that are sent.
        """
        return Canaries.of(self.config, self.space, self.sent_names) if self.config.privacy.canaries else None

    def expected(self, round: int, client: int, received: Mapping[str, Tensor]) -> Expected:
        """The required form of a client's upload.

        Args:
            received: the client's download of this round, by name.
        """
        most, config = self.declared.most_samples, self.config
        forms = self.method.forms(received, round, most, self.unused(client))
        examples = None if config.privacy.level == "client" else (1, most)
        bound, dtype = config.train.max_update_norm, self.initial.dtype
        expected = Expected(round, client, forms, received, examples, dtype=dtype, max_update_norm=bound)
        return expected.through(self.transforms, self.linear)


def agree(
    config: RunConfig, new_net: Callable[[], Net], declared: Declared, transforms: Sequence[Transform], device: torch.device
) -> tuple[Agreement, Net]:
    """Draw the initial model and build the method; returns the agreement, and the initial model as a net on the device.

    Args:
        new_net: builds a net with weights drawn from torch's global generator.

    Raises:
        UsageError: the net has state outside its row, the method does not fit it, or ``model.init`` does not.
    """

    def draw(label: str) -> Net:
        with global_rng(config.seed, "model", label):
            return new_net()

    net = draw("initial")
    space = ParameterSpace.of(net)
    _check_state(net, space)
    _check_finite(net, space)
    drawn = None if config.model.init is None else space.row_of(net)
    given = start_from_given(net, space, config.model)
    config = config.model_copy(update={"model": given.config})
    order = order_of(net)
    context = Context(
        config=config,
        space=space,
        classes=declared.task.outputs,
        numbers=declared.target is not None,
        projection_dim=net.projection_dim,
        new_row=lambda label: space.row_of(draw(label)),
        generator=lambda purpose: generator(config.seed, purpose),
        norms=frozenset(
            f"{where}.{name}" for where, module in norms_with_statistics(net).items() for name in module.state_dict()
        ),
        layers=order.layers,
        apart=order.apart,
        masked=frozenset(space.names) - set(sent_names(space.names, transforms, order.linear)),
        hides=lambda name: not sent_names([name], transforms, order.linear),
        mean_samples=declared.mean_samples,
        registered=len(declared.trainable),
        class_weights=class_weights(config, declared),
    )
    net = net.to(device)
    method = build_method(config, context)
    constants = constant_buffers(net)
    initial = space.row_of(net)
    return Agreement(config, method, tuple(transforms), initial, declared, order, constants, given, drawn), net


def class_weights(config: RunConfig, declared: Declared) -> Tensor | None:
    """The weight of each class in the cross-entropy ``(C,)``; ``None``: all are equal, or the counts are not known."""
    if config.train.class_weights is None or declared.class_counts is None:
        return None
    return balanced_weights(declared.class_counts)


def _check_state(net: Net, space: ParameterSpace) -> None:
    """Check that training changes no state outside the row that affects results."""
    for where, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
            raise UsageError(
                f"{where}: BatchNorm with momentum=None averages over all batches it has seen, whose number belongs to no "
                "client's state; give it a momentum, such as 0.1"
            )
    if (name := find_hidden_state(net, space)) is not None:
        change = f"{name}: the net's forward pass changes it or assigns it anew"
        if name in space:
            raise UsageError(
                f"{change}, and it is part of each client's state: what is assigned is not, and would go from client to client; "
                "change it in place, as in weight.data.copy_(new)"
            )
        if name in net.state_dict() and dict(net.named_buffers())[name].is_floating_point():
            last = name.rpartition(".")[2]
            raise UsageError(
                f"{name}: training changes this buffer, and of buffers only running statistics are averaged over the clients; if "
                f"their mean is right for it, name it {RUNNING}{last} and change it in place; otherwise make it a parameter "
                "that is learnt, or leave out what keeps it"
            )
        raise UsageError(
            f"{change}, and may compute with it, but it belongs to no client's state and would go from client to client; make it "
            f"a persistent buffer of floats that is changed in place and whose name begins with {RUNNING}, if the clients' mean "
            "is right for it, or leave it out"
        )


def _check_finite(net: Net, space: ParameterSpace) -> None:
    """Check that the initial model is finite, since messages that are not are refused."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    if (name := next((name for name in space.names if not bool(tensors[name].isfinite().all())), None)) is not None:
        what = "make a constant a buffer of another name" if space[name].kind == "buffer" else "give it initial values"
        raise UsageError(f"{name} of the net is not finite before training, so it cannot be sent; {what}")
