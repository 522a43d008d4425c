"""The layers of K nets of one architecture as single layers, which compute the same as the K separate layers.

The images of all clients are one tensor ``(B, K*C, H, W)`` (channels last on a CPU), so that even convolutions with few channels
use the vector units, and pooling is one pass over memory. Vectors are ``(K, B, d)``, for batched matrix products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.samples import laid_out


class NotStackable(Exception):
    """A part of the net has no stacked form."""


@dataclass
class ForwardContext:
    """The context of one forward pass through the stacked net.

    Attributes:
        clients: K.
        tensors: the K nets' parameters and buffers by name, ``(K, *shape)``; buffers are updated in place.
        training: the roles in training mode.
        draw: (tensor of one client, probability of a zero) -> 0/1 masks ``(K, *shape)``, from each client's own generator.
        places: parameter -> the tensor, and the place ``(K, *shape)`` of its gradient. Linear layers write theirs there, and not
            through autograd. ``None``: autograd has all gradients.
        written: the parameters whose place holds a gradient of this backward pass.
    """

    clients: int
    tensors: Mapping[str, Tensor]
    training: frozenset[str]
    draw: Callable[[Tensor, float], Tensor]
    places: Mapping[str, tuple[Tensor, Tensor]] | None = None
    written: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Layer:
    """A layer of the single net, by its full name."""

    name: str
    module: nn.Module

    def tensor(self, ctx: ForwardContext, name: str) -> Tensor | None:
        """A tensor of the layer, of all clients ``(K, *shape)``; ``None`` if the layer has none of this name.

        Raises:
            NotStackable: it is trained, but under another name, like a tied parameter.
        """
        if (stacked := ctx.tensors.get(f"{self.name}.{name}")) is not None:
            return stacked
        single: Tensor | None = getattr(self.module, name)
        if single is None:
            return None
        if single.requires_grad:
            raise NotStackable(f"{self.name}: its {name} is that of another layer too")
        return single.detach().expand(ctx.clients, *single.shape)  # a constant

    def training(self, ctx: ForwardContext) -> bool:
        return self.name.partition(".")[0] in ctx.training


LayerForm = Callable[[Layer, ForwardContext, Tensor], Tensor]
IMAGES, VECTORS = 4, 3
"""Number of dimensions of stacked images, and of stacked vectors."""


def _convolution(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    return with_bias(layer, ctx, without_bias(layer, ctx, x))


def without_bias(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    """Convolve ``(B, K*C, H, W)``, without the bias."""
    module, weight = layer.module, layer.tensor(ctx, "weight")
    assert isinstance(module, nn.Conv2d) and weight is not None
    padding: Any = module.padding
    return F.conv2d(x, weight.flatten(0, 1), None, module.stride, padding, module.dilation, module.groups * ctx.clients)


def with_bias(layer: Layer, ctx: ForwardContext, y: Tensor) -> Tensor:
    """Add a convolution's bias; separately, as oneDNN's gradient of a bias takes half as long as that of the convolution."""
    bias = layer.tensor(ctx, "bias")
    return y if bias is None else y + bias.flatten()[:, None, None]


@dataclass(frozen=True)
class LinearChain:
    """Linear layers one after another, some followed by a ReLU, as one node of autograd.

    Attributes:
        rectified: for each layer, whether a ReLU follows it.
    """

    layers: tuple[Layer, ...]
    rectified: tuple[bool, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of each layer's weight and bias."""
        return tuple(f"{layer.name}.{name}" for layer in self.layers for name in ("weight", "bias"))

    def __call__(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        tensors: list[Tensor | None] = []
        for layer in self.layers:
            tensors += layer.tensor(ctx, "weight"), layer.tensor(ctx, "bias")
        y: Tensor = _LinearChain.apply(self, ctx, x, *tensors)
        return y

    def then(self, other: LinearChain) -> LinearChain:
        """This chain, and the other one after it."""
        return LinearChain(self.layers + other.layers, self.rectified + other.rectified)

    def then_relu(self) -> LinearChain:
        """This chain, and a ReLU after it."""
        return replace(self, rectified=(*self.rectified[:-1], True))


class _LinearChain(torch.autograd.Function):
    """``x @ weight^T + bias`` of each client and layer: ``(K, B, in)`` and ``(K, out, in)``, ``(K, out)`` -> ``(K, B, out)``.

    The gradient of a weight is not transposed in memory, unlike torch's own, where copying it takes as long as computing it.
    """

    @staticmethod
    def forward(ctx: Any, chain: LinearChain, passed: ForwardContext, x: Tensor, *tensors: Tensor | None) -> Tensor:
        weights, inputs = tensors[::2], []
        for weight, bias, rectified in zip(weights, tensors[1::2], chain.rectified, strict=True):
            assert weight is not None
            inputs.append(x)
            x = torch.bmm(x, weight.transpose(1, 2))
            ctx.dtype = x.dtype  # half of the inputs' precision under autocast
            if bias is not None:
                x = x.add_(bias[:, None]) if bias.dtype == x.dtype else x + bias[:, None]
            if rectified:
                x = x.relu_()
        ctx.chain, ctx.places, ctx.written = chain, passed.places, passed.written
        ctx.save_for_backward(*inputs, x, *weights)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        assert not torch.is_grad_enabled(), "the gradient of a gradient"
        chain, saved, number = ctx.chain, ctx.saved_tensors, len(ctx.chain.layers)
        inputs, weights, needed = saved[: number + 1], saved[number + 1 :], ctx.needs_input_grad[2:]
        first = needed.index(True)
        gradients: list[Tensor | None] = [None] * len(needed)

        def place(at: int) -> Tensor | None:
            """Where the gradient of an input is written; ``None``: it is returned."""
            if ctx.places is None or (name := chain.names[at - 1]) in ctx.written:
                return None
            ctx.written.add(name)
            return ctx.places[name][1]  # type: ignore[no-any-return]

        for at in reversed(range(number)):
            weight, bias = 1 + 2 * at, 2 + 2 * at  # their positions among the inputs
            if chain.rectified[at]:
                gradient = torch.ops.aten.threshold_backward(gradient, inputs[at + 1], 0)
            if needed[bias]:
                out = place(bias)
                total = torch.sum(gradient, 1) if out is None else torch.sum(gradient, 1, out=out)
                gradients[bias] = total if out is None else None
            gradient = gradient.to(ctx.dtype)
            if needed[weight]:
                out = place(weight)
                product = torch.bmm(gradient.transpose(1, 2), inputs[at].to(gradient), out=out)
                gradients[weight] = product if out is None else None
            if first >= weight:
                break
            gradient = torch.bmm(gradient, weights[at].to(gradient)).to(inputs[at])
        gradients[0] = gradient if needed[0] else None
        return (None, None, *gradients)


def _batch_norm(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    module = layer.module
    assert isinstance(module, _BatchNorm)
    flat = x if x.ndim == IMAGES else x.transpose(0, 1).flatten(1)
    stored = [layer.tensor(ctx, name) for name in ("running_mean", "running_var")]
    # Copies: the rows are not contiguous, and the backward pass needs the old values.
    running = [None if tensor is None else tensor.flatten().clone() for tensor in stored]
    weight, bias = (None if (t := layer.tensor(ctx, name)) is None else t.flatten() for name in ("weight", "bias"))
    training = layer.training(ctx) or running[0] is None
    momentum = 0.0 if module.momentum is None else module.momentum
    y = F.batch_norm(flat, running[0], running[1], weight, bias, training, momentum, module.eps)
    if training:
        with torch.no_grad():
            for old, new in zip(stored, running, strict=True):
                if old is not None and new is not None:
                    old.copy_(new.view_as(old))
    return y if x.ndim == IMAGES else by_client(y, ctx.clients)


def _group_norm(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    module = layer.module
    assert isinstance(module, nn.GroupNorm)
    weight, bias = (None if (t := layer.tensor(ctx, name)) is None else t.flatten() for name in ("weight", "bias"))
    return F.group_norm(x, module.num_groups * ctx.clients, weight, bias, module.eps)


def _layer_norm(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    module = layer.module
    assert isinstance(module, nn.LayerNorm)
    y = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    weight, bias = layer.tensor(ctx, "weight"), layer.tensor(ctx, "bias")
    y = y if weight is None else y * weight[:, None]
    return y if bias is None else y + bias[:, None]


def _dropout(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    module = layer.module
    assert isinstance(module, nn.Dropout)
    if not layer.training(ctx) or not module.p:
        return x
    if x.ndim == IMAGES:
        raise NotStackable(f"{layer.name}: dropout on images, whose masks would differ from those of a single client")
    return x * (ctx.draw(x[0], module.p).to(x) / (1 - module.p or 1.0))  # with p = 1 all is zero


def _unchanged(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    """Apply a layer without state that acts on each entry or each channel separately."""
    y: Tensor = layer.module.forward(x)  # without hooks, which a stacked net has none of
    return y


FORMS: dict[type[nn.Module], LayerForm] = {
    nn.Conv2d: _convolution,
    nn.Linear: lambda layer, ctx, x: LinearChain((layer,), (False,))(ctx, x),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d), _unchanged),
    nn.Flatten: lambda layer, ctx, x: to_vectors(x, ctx.clients),
    nn.Dropout: _dropout,
    **dict.fromkeys((nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Identity), _unchanged),
}
"""Type of layer -> its stacked form."""


def _flattened(ctx: ForwardContext, x: Tensor) -> Tensor:
    return to_vectors(x, ctx.clients)


FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add), lambda ctx, x, y: x + y),
    **dict.fromkeys((torch.relu, F.relu), lambda ctx, x: F.relu(x)),
    torch.flatten: _flattened,
}
"""Function between layers -> its stacked form."""


def to_vectors(x: Tensor, clients: int) -> Tensor:
    """Images ``(B, K*C, H, W)`` flattened to vectors ``(K, B, C*H*W)``; vectors are unchanged."""
    return x if x.ndim == VECTORS else by_client(x, clients).flatten(2)


def by_client(x: Tensor, clients: int) -> Tensor:
    """``(B, K*C, ...)`` -> ``(K, B, C, ...)``."""
    return x.view(x.shape[0], clients, -1, *x.shape[2:]).transpose(0, 1)


def to_stack(samples: Sequence[Tensor], longest: int) -> Tensor:
    """Stack K batches of images ``(B_k, C, H, W)`` or vectors ``(B_k, d)``, padded with zeros to ``longest`` samples."""
    sizes = [x.shape[0] for x in samples]
    padded = [
        x if size == longest else F.pad(x, (0, 0) * (x.ndim - 1) + (0, longest - size))
        for x, size in zip(samples, sizes, strict=True)
    ]
    if samples[0].ndim == IMAGES:
        return laid_out(torch.cat(padded, 1))
    return torch.stack(padded)


def step_of(layer: Layer) -> Callable[[ForwardContext, Tensor], Tensor]:
    """The layer's forward pass over stacked tensors.

    Raises:
        NotStackable: the layer has no stacked form.
    """
    form = FORMS.get(type(layer.module))
    if form is None:
        raise NotStackable(f"{layer.name}: {type(layer.module).__name__}")
    if isinstance(layer.module, nn.Conv2d) and layer.module.padding_mode != "zeros":
        raise NotStackable(f"{layer.name}: a convolution padded by {layer.module.padding_mode}")
    if isinstance(layer.module, _BatchNorm) and layer.module.momentum is None:
        raise NotStackable(f"{layer.name}: BatchNorm with a cumulative mean")
    if isinstance(layer.module, nn.Flatten) and (layer.module.start_dim, layer.module.end_dim) != (1, -1):
        raise NotStackable(f"{layer.name}: a flattening of some dimensions only")
    return partial(form, layer)
