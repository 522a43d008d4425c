"""K nets of the same architecture as one wide net with grouped layers.

Images of all clients are one tensor ``(B, K*C, H, W)``, channels last, so that a convolution of six channels for ten clients
fills vector units, and pooling is one pass over memory. Vectors are ``(K, B, d)``, for batched matrix products. Clients do not
interact: the functions are those of the single net.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.models.net import ROLES, Net, Outputs


class NotStackable(Exception):
    """A part of the net has no stacked form."""


@dataclass
class ForwardContext:
    """The context of one forward pass through the stacked net.

    Attributes:
        clients: K.
        tensors: the K nets' parameters and buffers by name, ``(K, *shape)``; buffers are updated in place.
        training: the roles in training mode.
        draw: (one client's tensor, probability of a zero) -> 0/1 masks ``(K, *its shape)``, from each client's own generator.
    """

    clients: int
    tensors: Mapping[str, Tensor]
    training: frozenset[str]
    draw: Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Layer:
    """A layer of the single net, by its full name."""

    name: str
    module: nn.Module

    def tensor(self, ctx: ForwardContext, name: str) -> Tensor | None:
        """A tensor of the layer ``(K, *shape)``; ``None`` if it has none of this name. Constants are the same for all."""
        own: Tensor | None = getattr(self.module, name)
        if own is None or (known := ctx.tensors.get(f"{self.name}.{name}")) is not None:
            return known if own is not None else None
        return own.detach().expand(ctx.clients, *own.shape)

    def training(self, ctx: ForwardContext) -> bool:
        return self.name.partition(".")[0] in ctx.training


LayerForm = Callable[[Layer, ForwardContext, Tensor], Tensor]
_IMAGES, _VECTORS = 4, 3
"""Number of dimensions of stacked images and of stacked vectors."""


def _convolution(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    return _with_bias(layer, ctx, _without_bias(layer, ctx, x))


def _without_bias(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    module, weight = layer.module, layer.tensor(ctx, "weight")
    assert isinstance(module, nn.Conv2d) and weight is not None
    padding: Any = module.padding
    return F.conv2d(x, weight.flatten(0, 1), None, module.stride, padding, module.dilation, module.groups * ctx.clients)


def _with_bias(layer: Layer, ctx: ForwardContext, y: Tensor) -> Tensor:
    """Add a convolution's bias separately, since oneDNN's gradient of it takes half as long as the convolution."""
    bias = layer.tensor(ctx, "bias")
    return y if bias is None else y + bias.flatten()[:, None, None]


def _linear(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    weight, bias = layer.tensor(ctx, "weight"), layer.tensor(ctx, "bias")
    assert weight is not None
    y: Tensor = _MatrixProducts.apply(x, weight)
    return y if bias is None else y + bias[:, None]


class _MatrixProducts(torch.autograd.Function):
    """``x @ weight^T`` of each client: ``(K, B, in)`` and ``(K, out, in)`` -> ``(K, B, out)``.

    torch gives the weights' gradient transposed in memory; copying it into the rows then takes as long as computing it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = (saved.to(gradient) for saved in ctx.saved_tensors)  # autocast: the product was computed in half precision
        of_x = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return of_x, torch.bmm(gradient.transpose(1, 2), x) if ctx.needs_input_grad[1] else None


def _batch_norm(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    module = layer.module
    assert isinstance(module, _BatchNorm)
    flat = x if x.ndim == _IMAGES else x.transpose(0, 1).flatten(1)
    stored = [layer.tensor(ctx, name) for name in ("running_mean", "running_var")]
    # Copies, as the rows are not contiguous and backward needs their values unchanged.
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
    return y if x.ndim == _IMAGES else _by_client(y, ctx.clients)


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
    if x.ndim == _IMAGES:
        raise NotStackable(f"{layer.name}: dropout on images, whose draws would differ from those of a single client")
    return x * (ctx.draw(x[0], module.p).to(x) / (1 - module.p))


def _alike(layer: Layer, ctx: ForwardContext, x: Tensor) -> Tensor:
    """A layer without state that acts on each entry, or each channel, separately."""
    y: Tensor = layer.module(x)
    return y


_FORMS: dict[type[nn.Module], LayerForm] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d), _alike),
    nn.Flatten: lambda layer, ctx, x: to_vectors(x, ctx.clients),
    nn.Dropout: _dropout,
    **dict.fromkeys((nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Identity), _alike),
}


def _flattened(ctx: ForwardContext, x: Tensor) -> Tensor:
    return to_vectors(x, ctx.clients)


_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add), lambda ctx, x, y: x + y),
    **dict.fromkeys((torch.relu, F.relu), lambda ctx, x: F.relu(x)),
    torch.flatten: _flattened,
}


def to_vectors(x: Tensor, clients: int) -> Tensor:
    """Images ``(B, K*C, H, W)`` flattened to vectors ``(K, B, C*H*W)``; vectors are unchanged."""
    return x if x.ndim == _VECTORS else _by_client(x, clients).flatten(2)


def _by_client(x: Tensor, clients: int) -> Tensor:
    """``(B, K*C, ...)`` -> ``(K, B, C, ...)``."""
    return x.view(len(x), clients, -1, *x.shape[2:]).transpose(0, 1)


def to_stack(samples: Sequence[Tensor], longest: int) -> Tensor:
    """Stack K batches of images ``(B_k, C, H, W)`` or vectors ``(B_k, d)``; shorter ones are padded with zeros."""
    padded = [x if len(x) == longest else F.pad(x, (0, 0) * (x.ndim - 1) + (0, longest - len(x))) for x in samples]
    if samples[0].ndim == _IMAGES:
        return torch.cat(padded, 1).contiguous(memory_format=torch.channels_last)
    return torch.stack(padded)


class Form(Protocol):
    """The interface of K nets as one."""

    draws: bool
    """Whether a forward pass in training mode draws random numbers."""
    mixes: frozenset[str]
    """Roles in which, in training mode, the samples of a batch interact, so that batches must not be padded."""

    def encode(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        """Stacked inputs -> features ``(K, B, d)``."""

    def from_features(self, ctx: ForwardContext, h: Tensor) -> Outputs:
        """Features ``(K, B, d)`` -> outputs, each ``(K, B, ...)``."""


class StackedNet(Form):
    """The forward pass of K nets with the architecture of ``net``, layer by layer.

    Raises:
        NotStackable: a layer, or a connection of layers, has no stacked form.
    """

    def __init__(self, net: Net) -> None:
        self._parts = {role: _traced(role, module) for role in ROLES if isinstance(module := getattr(net, role), nn.Module)}
        self.buffers = tuple(name for name, _ in net.named_buffers())
        self.draws = any(isinstance(module, nn.Dropout) and module.p for module in net.modules())
        self.mixes = frozenset(
            role for role in self._parts if any(isinstance(module, _BatchNorm) for module in getattr(net, role).modules())
        )
        self._check(net)

    @torch.no_grad()
    def _check(self, net: Net) -> None:
        """Check on two clients that the outputs equal those of the net."""
        state = net.state_dict()
        like = next(iter(state.values()))
        x = torch.rand((2, 3, *net.input_shape), generator=torch.Generator().manual_seed(0)).to(like)
        modes = [module.training for module in net.modules()]
        net.eval()
        try:
            for roles in (frozenset(ROLES), frozenset[str]()):
                tensors = {name: tensor.expand(2, *tensor.shape).clone() for name, tensor in state.items()}
                ctx = ForwardContext(2, tensors, roles, lambda like, share: torch.ones_like(like).expand(2, *like.shape))
                logits = self.from_features(ctx, self.encode(ctx, to_stack(list(x), 3))).logits
            for own, alone in zip(logits, x, strict=True):
                if not torch.allclose(own, net(alone).logits, rtol=1e-3, atol=1e-4):
                    raise NotStackable("the net as a whole: its stacked forward pass differs from its own")
        finally:
            for module, training in zip(net.modules(), modes, strict=True):
                module.training = training

    def encode(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        return to_vectors(self._run("encoder", ctx, x), ctx.clients)

    def from_features(self, ctx: ForwardContext, h: Tensor) -> Outputs:
        z = self._run("projector", ctx, h)
        prediction = self._run("predictor", ctx, z) if "predictor" in self._parts else None
        return Outputs(h, z, prediction, self._run("head", ctx, z))

    def _run(self, role: str, ctx: ForwardContext, x: Tensor) -> Tensor:
        return self._parts[role](ctx, x)


def _traced(role: str, module: nn.Module) -> Callable[[ForwardContext, Tensor], Tensor]:
    """A role's forward pass over stacked tensors."""
    if type(module) in _FORMS:  # a single layer needs no tracing
        return _step(Layer(role, module))
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # tracing may raise any exception
        raise NotStackable(f"{role}: its forward pass cannot be traced ({str(error).splitlines()[0]})") from None
    steps: list[tuple[fx.Node, Callable[..., Tensor], tuple[Any, ...]]] = []
    pooled: dict[fx.Node, Layer] = {}
    result: Any = None
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            result = node.args[0]
        elif node.op == "call_module":
            layer = Layer(f"{role}.{node.target}", module.get_submodule(str(node.target)))
            step = _step(layer)
            if (pooling := _only_pooled(node, module)) is not None:
                pooled[pooling], step = layer, partial(_without_bias, layer)
            elif node in pooled:
                step = partial(_pooled, pooled[node], step)
            steps.append((node, step, node.args))
        elif node.op == "call_function" and (inputs := _inputs(node)):
            steps.append((node, _FUNCTIONS[node.target], inputs))
        else:
            raise NotStackable(f"{role}: {node.op.replace('_', ' ')} {node.target}")
    if not isinstance(result, fx.Node):
        raise NotStackable(f"{role}: it returns more than a tensor")

    def run(ctx: ForwardContext, x: Tensor) -> Tensor:
        values: dict[fx.Node, Tensor] = {}
        for node, step, arguments in steps:
            values[node] = step(ctx, *(values.get(argument, x) for argument in arguments))
        return values.get(result, x)

    return run


def _only_pooled(node: fx.Node, module: nn.Module) -> fx.Node | None:
    """The maximum pooling that is the only use of a convolution's output; ``None`` if there is another."""
    if len(node.users) != 1 or not isinstance(module.get_submodule(str(node.target)), nn.Conv2d):
        return None
    user = next(iter(node.users))
    is_pooling = user.op == "call_module" and isinstance(module.get_submodule(str(user.target)), nn.MaxPool2d)
    return user if is_pooling else None


def _pooled(convolution: Layer, pooling: Callable[[ForwardContext, Tensor], Tensor], ctx: ForwardContext, x: Tensor) -> Tensor:
    """A convolution with pooling before the bias is added: the same result with a quarter of the additions."""
    return _with_bias(convolution, ctx, pooling(ctx, x))


def _inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensor arguments of a function with a stacked form; empty if it has none for this call."""
    if node.target not in _FUNCTIONS or node.kwargs.keys() - {"inplace"}:
        return ()
    arguments = node.args[:1] if node.target is torch.flatten and node.args[1:] == (1,) else node.args
    return arguments if all(isinstance(argument, fx.Node) for argument in arguments) else ()  # type: ignore[return-value]


def _step(layer: Layer) -> Callable[[ForwardContext, Tensor], Tensor]:
    form = _FORMS.get(type(layer.module))
    if form is None:
        raise NotStackable(f"{layer.name}: {type(layer.module).__name__}")
    if isinstance(layer.module, nn.Conv2d) and layer.module.padding_mode != "zeros":
        raise NotStackable(f"{layer.name}: a convolution padded by {layer.module.padding_mode}")
    if isinstance(layer.module, _BatchNorm) and layer.module.momentum is None:
        raise NotStackable(f"{layer.name}: BatchNorm with a cumulative mean")
    if isinstance(layer.module, nn.Flatten) and (layer.module.start_dim, layer.module.end_dim) != (1, -1):
        raise NotStackable(f"{layer.name}: a flattening of some dimensions only")
    return lambda ctx, x: form(layer, ctx, x)


class VmappedNet(Form):
    """The forward pass of K nets by ``torch.func.vmap``, for nets without a stacked form; hardly faster than one by one."""

    def __init__(self, net: Net) -> None:
        self._net = net
        modules = list(net.modules())
        self.draws = any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in modules)
        self.mixes = frozenset(ROLES if any(isinstance(module, _BatchNorm) for module in modules) else ())

    def encode(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        return self._run("encoder", ctx, x if x.ndim == _VECTORS else _by_client(x, ctx.clients))

    def from_features(self, ctx: ForwardContext, h: Tensor) -> Outputs:
        z = self._run("projector", ctx, h)
        prediction = None if self._net.predictor is None else self._run("predictor", ctx, z)
        return Outputs(h, z, prediction, self._run("head", ctx, z))

    def _run(self, role: str, ctx: ForwardContext, x: Tensor) -> Tensor:
        module: nn.Module = getattr(self._net, role)
        module.train(role in ctx.training)
        own = {name.removeprefix(role + "."): tensor for name, tensor in ctx.tensors.items() if name.startswith(role + ".")}
        # Copies, as vmap does not update running statistics that are not contiguous.
        running = {
            name: own[name].clone(memory_format=torch.contiguous_format) for name, _ in module.named_buffers() if name in own
        }
        own |= running

        def alone(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
            y: Tensor = functional_call(module, tensors, (x,))
            return y

        outputs = vmap(alone)(own, x)
        with torch.no_grad():
            for name, tensor in running.items():
                ctx.tensors[f"{role}.{name}"].copy_(tensor)
        return outputs
