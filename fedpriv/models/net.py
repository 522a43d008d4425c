"""The structure of every net: encoder -> projector -> head, with a predictor beside the head; each tensor belongs to a role."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedpriv.samples import Inputs

HeadOn = Literal["projection", "features"]
"""The head's input: z or h of :class:`Outputs`."""
Module = TypeVar("Module", bound=nn.Module)
ROLES = ("encoder", "projector", "predictor", "head")
AFTER_ENCODER = ROLES[1:]


@dataclass
class Outputs:
    """The outputs of a net on a batch of B inputs."""

    features: Tensor
    """(B, d): the encoder's output h."""
    projection: Tensor
    """(B, k): the projector's output z; the features themselves when there is no projector."""
    prediction: Tensor | None
    """(B, k): the predictor's output on z; None when there is no predictor."""
    logits: Tensor
    """(B, C): the head's output, on z or on h."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Apply ``change`` to each output."""
        prediction = None if self.prediction is None else change(self.prediction)
        return Outputs(change(self.features), change(self.projection), prediction, change(self.logits))

    def to(self, like: Tensor) -> Outputs:
        """The outputs on the device and with the dtype of a tensor."""
        return self.map(lambda tensor: tensor.to(like))


@dataclass(frozen=True)
class RoleSize:
    """The size of one role of a net."""

    role: str
    parameters: int
    """Number of trainable scalars."""
    bytes: int
    """Bytes of the parameters and buffers as stored (4 per scalar in float32; BatchNorm's counters take 8)."""


class Net(nn.Module):
    """A classifier with four roles; the names of its tensors start with the role.

    Args:
        encoder: maps (B, *input_shape) to (B, feature_dim).
        projector: maps (B, feature_dim) to (B, projection_dim); ``nn.Identity()`` when absent.
        predictor: maps (B, projection_dim) to (B, projection_dim), or None.
        head: maps (B, projection_dim), or (B, feature_dim), to (B, classes).
        head_on: the head's input: the projection, or the features.

    The forward pass has no data-dependent control flow, so that ``torch.func`` can differentiate and batch it.
    """

    encoder: nn.Module
    projector: nn.Module
    predictor: nn.Module | None
    head: nn.Module
    names_before: Mapping[str, str] = {}
    """For nets of the user: name of a tensor in their own state dict -> its name here, which starts with the role."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module | None,
        head: nn.Module,
        *,
        input_shape: tuple[int, ...],
        feature_dim: int,
        projection_dim: int,
        classes: int,
        head_on: HeadOn = "projection",
    ) -> None:
        super().__init__()
        for role, module in zip(ROLES, (encoder, projector, predictor, head), strict=True):
            self.register_module(role, module)
        self.input_shape = input_shape
        self.feature_dim = feature_dim
        self.projection_dim = projection_dim
        self.classes = classes
        self.head_on: HeadOn = head_on

    @property
    def path(self) -> tuple[str, ...]:
        """The roles from the input to the logits, in order."""
        return ("encoder", "projector", "head") if self.head_on == "projection" else ("encoder", "head")

    def for_head(self, h: Tensor, z: Tensor) -> Tensor:
        """The head's input: features h or projection z."""
        return z if self.head_on == "projection" else h

    def encode(self, x: Inputs) -> Tensor:
        """Samples, such as images (B, *input_shape), -> features (B, d)."""
        features: Tensor = self.encoder(x)
        return features

    def from_features(self, h: Tensor) -> Outputs:
        """Features (B, d) -> all outputs; for features that are computed once, because the encoder is frozen."""
        z = self.projector(h)
        prediction = None if self.predictor is None else self.predictor(z)
        return Outputs(features=h, projection=z, prediction=prediction, logits=self.head(self.for_head(h, z)))

    def forward(self, x: Inputs) -> Outputs:
        """Samples -> all outputs."""
        return self.from_features(self.encode(x))


def copy_of(net: Module, shared: Iterable[Tensor] = ()) -> Module:
    """A deep copy of a net or a part of one, except for the tensors ``shared``, which both have in common."""
    # torch cannot copy a tensor with a graph, such as the weight that the hook of weight_norm computes before each pass.
    attributes = [value for part in net.modules() for value in vars(part).values()]
    computed = [value for value in attributes if isinstance(value, Tensor) and not value.is_leaf]
    return copy.deepcopy(net, {id(tensor): tensor for tensor in shared} | {id(tensor): tensor.detach() for tensor in computed})


def norms_with_statistics(net: nn.Module) -> dict[str, nn.Module]:
    """The normalisation layers with running statistics of the client's data, by name.

    These are BatchNorm, and InstanceNorm with running statistics; without them it normalises each sample by itself.
    """
    return {
        where: module
        for where, module in net.named_modules()
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats)
    }


def describe(net: Net) -> list[RoleSize]:
    """Parameters and bytes of each of the ``ROLES``, in order; zeros for an absent role. Works on the meta device."""
    rows = []
    for role in ROLES:
        module = getattr(net, role)
        parameters = [] if module is None else list(module.parameters())
        buffers = [] if module is None else list(module.buffers())
        size = sum(t.numel() * t.element_size() for t in (*parameters, *buffers))
        rows.append(RoleSize(role, sum(p.numel() for p in parameters), size))
    return rows
