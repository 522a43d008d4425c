"""The layers of K nets of one architecture as single layers, which compute the same as the K separate layers.

The images of all clients are one tensor ``(B, K*C, H, W)`` (channels last on a CPU), so that even convolutions with few channels
use the vector units, and pooling is one pass over memory. Vectors are ``(K, B, d)``, for batched matrix products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.samples import laid_out


class NotStackable(Exception):
    """A part of the net has no stacked form."""


@dataclass
class Leaf:
    """A parameter ``(K, *shape)`` that is a leaf of autograd.

    Attributes:
        gradient: the place of its gradient, a view of the rows of all gradients.
        written: whether the backward pass of a layer has written its gradient there; a further one is added.
    """

    tensor: Tensor
    gradient: Tensor
    written: bool = False


@dataclass
class ForwardContext:
    """The context of one forward pass through the stacked net.

    Attributes:
        clients: K.
        tensors: the K nets' parameters and buffers by name, ``(K, *shape)``; buffers are updated in place.
        training: the roles in training mode.
        draw: (tensor of one client, probability of a zero) -> 0/1 masks ``(K, *shape)``, from each client's own generator.
        leaves: parameters whose gradients layers may write themselves, by name; autograd then has none of them.
    """

    clients: int
    tensors: Mapping[str, Tensor]
    training: frozenset[str]
    draw: Callable[[Tensor, float], Tensor]
    leaves: Mapping[str, Leaf] = field(default_factory=dict)


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


def _linear(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    weight, bias = layer.tensor(ctx, "weight"), layer.tensor(ctx, "bias")
    leaves = ctx.leaves.get(f"{layer.name}.weight"), ctx.leaves.get(f"{layer.name}.bias")
    if bias is not None and torch.is_autocast_enabled(x.device.type):  # the products are in half precision, the bias is not
        product: Tensor = _Linear.apply(x, weight, None, *leaves)
        return product + bias[:, None]
    y: Tensor = _Linear.apply(x, weight, bias, *leaves)
    return y


class _Linear(torch.autograd.Function):
    """``x @ weight^T + bias`` of each client: ``(K, B, in)``, ``(K, out, in)`` and ``(K, out)`` -> ``(K, B, out)``.

    Unlike torch's own gradient of the weight, this one is not transposed in memory, where copying it takes as long as computing
    it. The gradients of leaves are computed where they belong, which saves a pass through memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Leaf | None,
        bias_leaf: Leaf | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.leaves = weight_leaf, bias_leaf
        y = torch.bmm(x, weight.transpose(1, 2))
        return y if bias is None else y.add_(bias[:, None])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        if x.dtype != gradient.dtype or weight.dtype != gradient.dtype:  # autocast: the product was computed in half precision
            x, weight = x.to(gradient), weight.to(gradient)
        of_x = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight, of_bias = None, None
        leaf, bias_leaf = ctx.leaves
        if ctx.needs_input_grad[1]:
            if leaf is None or leaf.gradient.dtype != gradient.dtype:
                of_weight = torch.bmm(gradient.transpose(1, 2), x)
            elif leaf.written:
                leaf.gradient.baddbmm_(gradient.transpose(1, 2), x)
            else:
                torch.bmm(gradient.transpose(1, 2), x, out=leaf.gradient)
                leaf.written = True
        if ctx.needs_input_grad[2]:
            if bias_leaf is None:
                of_bias = gradient.sum(1)
            elif bias_leaf.written:
                bias_leaf.gradient.add_(gradient.sum(1))
            else:
                torch.sum(gradient, 1, out=bias_leaf.gradient)
                bias_leaf.written = True
        return of_x, of_weight, of_bias, None, None


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
    nn.Linear: _linear,
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
