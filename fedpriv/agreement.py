"""What server and clients agree on before the first round: each half can build it from the config and declared facts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.config import RunConfig
from fedpriv.defenses import sent_names
from fedpriv.errors import UsageError
from fedpriv.methods.base import Context, Method
from fedpriv.methods.build import build_method
from fedpriv.models.net import Net, norms_with_statistics
from fedpriv.models.order import Order, order_of
from fedpriv.models.state import carried
from fedpriv.parameters import RUNNING, ParameterSpace, constant_buffers
from fedpriv.privacy.canaries import Canaries
from fedpriv.samples import Modality
from fedpriv.seeding import generator, global_rng
from fedpriv.wire import Expected, Transform


@dataclass(frozen=True)
class Declared:
    """What the server is told of the clients' data, before the first round.

    Attributes:
        classes: number of classes.
        trainable: the clients that hold training data, ascending.
        mean_samples: number of training samples of such a client, on average.
        most_samples: the largest number of training samples of a client.
        lacks: of image-text pairs, what a client does not have of any of its samples, by client.
    """

    classes: int
    trainable: Sequence[int]
    mean_samples: float
    most_samples: int
    lacks: Mapping[int, Modality] = field(default_factory=dict)


@dataclass
class Agreement:
    """The terms of a run: nothing of a client's data, nothing of the server's state.

    Attributes:
        config: with nothing left open.
        transforms: what an upload goes through before it is sealed, in order.
        initial: ``(p,)`` the initial model, drawn from the seed.
        declared: what the server is told of the clients' data.
        order: of the net's layers.
        constants: persistent buffers of floats that training does not change, by name: each side has them of its own net.
    """

    config: RunConfig
    method: Method
    transforms: Sequence[Transform]
    initial: Tensor
    declared: Declared
    order: Order
    constants: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def linear(self) -> tuple[str, ...]:
        """Names of the fully connected layers that the logits depend on, in forward order."""
        return self.order.linear

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the net's parameters that learn, in forward order."""
        return self.order.layers

    @property
    def space(self) -> ParameterSpace:
        """The layout of the net's state."""
        return self.method.context.space

    @property
    def trainable(self) -> Sequence[int]:
        """The clients that hold training data, ascending."""
        return self.declared.trainable

    def unused(self, client: int) -> frozenset[str]:
        """The net's tensors that a client's data never reach: of pairs, the branch of what it does not have."""
        branch = f"encoder.{self.declared.lacks.get(client)}."
        return frozenset(name for name in self.space.names if name.startswith(branch))

    @property
    def sent_names(self) -> tuple[str, ...]:
        """The net's tensors that clients send: those the method shares and no mask hides.

        Raises:
            UsageError: a mask that cannot be right.
        """
        return sent_names(self.method.shared_names, self.transforms, self.linear)

    @cached_property
    def canaries(self) -> Canaries | None:
        """The run's canaries, if it has some.

        Raises:
            UsageError: there are more than parameters that are sent.
        """
        return Canaries.of(self.config, self.space, self.sent_names) if self.config.privacy.canaries else None

    def expected(self, round: int, client: int, received: Mapping[str, Tensor]) -> Expected:
        """What the client's upload of a round must be.

        Args:
            received: what it was sent in this round, by name.
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
    """Draw the initial model and make the method; also that model as a net on the device.

    Args:
        new_net: a net with weights drawn from torch's global generator.

    Raises:
        UsageError: the net has a state that is no client's, or the method does not fit it.
    """

    def drawn(label: str) -> Net:
        with global_rng(config.seed, "model", label):
            return new_net()

    net = drawn("initial")
    space = ParameterSpace.of(net)
    _check_state(net, space)
    _check_finite(net, space)
    order = order_of(net)
    context = Context(
        config=config,
        space=space,
        classes=declared.classes,
        projection_dim=net.projection_dim,
        new_row=lambda label: space.row_of(drawn(label)),
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
    )
    net = net.to(device)
    method = build_method(config, context)
    constants = constant_buffers(net)
    return Agreement(config, method, tuple(transforms), space.row_of(net), declared, order, constants), net


def _check_state(net: Net, space: ParameterSpace) -> None:
    """Check that the net computes with nothing that training changes and that is in no client's state and no checkpoint."""
    for where, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
            raise UsageError(
                f"{where}: BatchNorm with momentum=None averages over all batches it has seen, whose number belongs to no "
                "client's state; give it a momentum, such as 0.1"
            )
    if (name := carried(net, space)) is not None:
        does = f"{name}: the net's forward pass changes it or assigns it anew"
        if name in space:
            raise UsageError(
                f"{does}, and it is part of each client's state: what is assigned is not, and would go from client to client; "
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
            f"{does}, and may compute with it, but it belongs to no client's state and would go from client to client; make it a "
            f"persistent buffer of floats that is changed in place and whose name begins with {RUNNING}, if the clients' mean is "
            "right for it, or leave it out"
        )


def _check_finite(net: Net, space: ParameterSpace) -> None:
    """Check that the initial model can be sent: what is not finite is refused on arrival, in any round."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    if (name := next((one for one in space.names if not bool(tensors[one].isfinite().all())), None)) is not None:
        what = "make a constant a buffer of another name" if space[name].kind == "buffer" else "give it initial values"
        raise UsageError(f"{name} of the net is not finite before training, so it cannot be sent; {what}")
