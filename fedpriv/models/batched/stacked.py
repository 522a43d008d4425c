"""K nets of one architecture as one wide net: the single net is traced, and each layer replaced by its stacked form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.core.functional import functional_call
from fedpriv.errors import first_line
from fedpriv.models.batched.layers import (
    FORMS,
    FUNCTIONS,
    VECTORS,
    ForwardContext,
    Layer,
    NotStackable,
    by_client,
    step_of,
    to_stack,
    to_vectors,
    with_bias,
    without_bias,
)
from fedpriv.models.net import ROLES, Net, Outputs, copy_of
from fedpriv.models.state import samples_interact
from fedpriv.parameters import ParameterSpace


class Form(Protocol):
    """The interface of K nets as one."""

    draws: bool
    """Whether a forward pass in training mode draws random numbers."""
    mixes: frozenset[str]
    """Roles in which the samples of a batch interact in training mode, so that batches must not be padded."""

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
        _check_layers(net)
        self._for_head = net.for_head
        self._parts = {role: _traced(role, module) for role in ROLES if isinstance(module := getattr(net, role), nn.Module)}
        self.buffers = tuple(name for name, _ in net.named_buffers())
        self.draws = any(isinstance(module, nn.Dropout) and module.p for module in net.modules())
        self.mixes = frozenset(
            role for role in self._parts if any(isinstance(module, _BatchNorm) for module in getattr(net, role).modules())
        )
        check(self, net)

    def encode(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        return to_vectors(self._run("encoder", ctx, x), ctx.clients)

    def from_features(self, ctx: ForwardContext, h: Tensor) -> Outputs:
        z = self._run("projector", ctx, h)
        prediction = self._run("predictor", ctx, z) if "predictor" in self._parts else None
        return Outputs(h, z, prediction, self._run("head", ctx, self._for_head(h, z)))

    def _run(self, role: str, ctx: ForwardContext, x: Tensor) -> Tensor:
        return self._parts[role](ctx, x)


def _check_layers(net: Net) -> None:
    """Check that the layers compute what their types say.

    Raises:
        NotStackable: a module has hooks (such as those of weight_norm) or its own training mode.
    """
    for name, module in net.named_modules():
        if module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks:
            raise NotStackable(f"{name}: a hook, as of weight_norm or pruning")
        if type(module).train is not nn.Module.train:
            raise NotStackable(f"{name}: its own train() method")


def _traced(role: str, module: nn.Module) -> Callable[[ForwardContext, Tensor], Tensor]:
    """The forward pass of a role over stacked tensors."""
    if type(module) in FORMS:  # a single layer needs no tracing
        return step_of(Layer(role, module))
    try:
        graph = fx.Tracer().trace(copy_of(module))  # a copy, as tracing may leave proxies in the module
    except Exception as error:  # tracing may raise any exception
        raise NotStackable(f"{role}: its forward pass cannot be traced ({first_line(error)})") from None
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
            step = step_of(layer)
            if (pooling := _only_pooled(node, module)) is not None:
                pooled[pooling], step = layer, partial(without_bias, layer)
            elif node in pooled:
                step = partial(_pooled, pooled[node], step)
            steps.append((node, step, node.args))
        elif inputs := _inputs(node):
            steps.append((node, FUNCTIONS[_function(node)], inputs))
        else:
            raise NotStackable(f"{role}: {node.op.replace('_', ' ')} {node.target}")
    if not isinstance(result, fx.Node):
        raise NotStackable(f"{role}: it returns more than a tensor")

    def run(ctx: ForwardContext, x: Tensor) -> Tensor:
        values: dict[fx.Node, Tensor] = {}
        for node, step, arguments in steps:
            first, *others = arguments
            if others:
                values[node] = step(ctx, *[values.get(argument, x) for argument in arguments])
            else:
                values[node] = step(ctx, values.get(first, x))
        return values.get(result, x)

    return run


def _only_pooled(node: fx.Node, module: nn.Module) -> fx.Node | None:
    """The maximum pooling, if it is the only use of a convolution's output, or else ``None``."""
    if len(node.users) != 1 or not isinstance(module.get_submodule(str(node.target)), nn.Conv2d):
        return None
    user = next(iter(node.users))
    is_pooling = user.op == "call_module" and isinstance(module.get_submodule(str(user.target)), nn.MaxPool2d)
    return user if is_pooling else None


def _pooled(convolution: Layer, pooling: Callable[[ForwardContext, Tensor], Tensor], ctx: ForwardContext, x: Tensor) -> Tensor:
    """A convolution whose bias is added after the pooling: the same result, with a quarter of the additions."""
    return with_bias(convolution, ctx, pooling(ctx, x))


def _function(node: fx.Node) -> Any:
    """The function that a node calls; for a method such as ``x.relu()``, torch's function of the same name."""
    return getattr(torch, str(node.target), None) if node.op == "call_method" else node.target


def _inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensor arguments of a call; empty if the call has no stacked form."""
    function = _function(node)
    if function not in FUNCTIONS or node.kwargs.keys() - {"inplace"}:
        return ()
    arguments = node.args[:1] if function is torch.flatten and node.args[1:] == (1,) else node.args
    return arguments if all(isinstance(argument, fx.Node) for argument in arguments) else ()  # type: ignore[return-value]


class VmappedNet(Form):
    """The forward pass of K nets by ``torch.func.vmap``, for nets without a stacked form; hardly faster than one by one."""

    def __init__(self, net: Net) -> None:
        self._net = copy_of(net)  # a copy, as each pass changes its mode
        modules = list(net.modules())
        self.draws = any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in modules)
        self.mixes = frozenset(ROLES if _mixes(self._net) else ())

    def encode(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        return self._run("encoder", ctx, x if x.ndim == VECTORS else by_client(x, ctx.clients))

    def from_features(self, ctx: ForwardContext, h: Tensor) -> Outputs:
        z = self._run("projector", ctx, h)
        prediction = None if self._net.predictor is None else self._run("predictor", ctx, z)
        return Outputs(h, z, prediction, self._run("head", ctx, self._net.for_head(h, z)))

    def _run(self, role: str, ctx: ForwardContext, x: Tensor) -> Tensor:
        module: nn.Module = getattr(self._net, role)
        module.train(role in ctx.training)
        state = {name.removeprefix(role + "."): tensor for name, tensor in ctx.tensors.items() if name.startswith(role + ".")}
        # Copies, as vmap does not update running statistics that are not contiguous.
        running = {
            name: state[name].clone(memory_format=torch.contiguous_format) for name, _ in module.named_buffers() if name in state
        }
        state |= running

        def forward_single(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
            y: Tensor = functional_call(module, tensors, (x,))
            return y

        outputs = vmap(forward_single)(state, x)
        with torch.no_grad():
            for name, tensor in running.items():
                ctx.tensors[f"{role}.{name}"].copy_(tensor)
        return outputs


def _mixes(net: Net) -> bool:
    """Whether the samples of a batch interact in training mode; assumed of a net that fails."""
    if any(isinstance(module, _BatchNorm) for module in net.modules()):
        return True
    try:
        return samples_interact(net)
    except Exception:  # of the net
        return True


def check(form: Form, net: Net) -> None:
    """Check on two different nets that the stacked net can be trained and has the outputs of the single nets.

    Raises:
        NotStackable: it has not.
    """
    try:
        if samples_interact(net, training=False):  # a frozen model's outputs would depend on the batching
            raise NotStackable("the net as a whole: in evaluation mode, samples of a batch change each other's outputs")
        _check_outputs(form, net)
    except NotStackable:
        raise
    except Exception as error:  # layers may raise any exception on inputs with more dimensions
        raise NotStackable(f"the net as a whole: {first_line(error)}") from None


@torch.no_grad()
def _check_outputs(form: Form, net: Net) -> None:
    space, generator = ParameterSpace.of(net), torch.Generator().manual_seed(0)
    row = space.row_of(net)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator).to(row)

    # Not the initial values: they may be zero, and a tensor that is mistaken for a constant has them.
    rows = row * (1 + 0.1 * uniform(2, len(row)))
    for part in space.parameters():
        rows[:, part] += 0.02 * uniform(2, part.stop - part.start) - 0.01
    x = uniform(2, 3, *net.input_shape)
    modes = [module.training for module in net.modules()]
    net.eval()
    try:
        for roles in (frozenset(ROLES), frozenset[str]()):
            tensors = {name: torch.stack([space.view(row, name) for row in rows]) for name in space.names}
            leaves = [tensors[entry.name].requires_grad_(bool(roles)) for entry in space.entries if entry.kind != "buffer"]
            ctx = ForwardContext(2, tensors, roles, lambda like, share: torch.ones_like(like).expand(2, *like.shape))
            with torch.set_grad_enabled(bool(roles)):
                logits = form.from_features(ctx, form.encode(ctx, to_stack(list(x), 3))).logits
                if roles:
                    torch.autograd.grad(logits.sum(), leaves, allow_unused=True)
        for stacked, state, batch in zip(logits, rows, x, strict=True):
            expected: Outputs = functional_call(net, space.unpack(state), (batch,))
            if not torch.allclose(stacked, expected.logits, rtol=1e-3, atol=1e-4):
                raise NotStackable("the net as a whole: its stacked forward pass differs from its own")
    finally:
        for module, training in zip(net.modules(), modes, strict=True):
            module.training = training
