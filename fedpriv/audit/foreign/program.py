"""A net that was saved as a ``torch.export`` program, as a module with layers again.

A program is a list of operations. Attacks ask a net for its layers, and switch dropout off and BatchNorm's mode on. So operations
become the layers they came from, with the names of the saved weights; other operations stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedpriv.errors import UsageError, first_line

_COUNT = "num_batches_tracked"
"""The buffer of BatchNorm that no operation of its layer reads."""


def load_program(path: Path) -> nn.Module:
    """The net of a file that :func:`torch.export.save` wrote, in the mode in which it was exported.

    The file is code: loading it can run whatever its writer wants. Load only what its user trusts.

    Raises:
        UsageError: it is no such file, or cannot be used as a net.
    """
    if not path.is_file():
        raise UsageError(f"there is no {path}")
    try:
        program = torch.export.load(path)
    except Exception as error:  # of the file's content
        raise UsageError(
            f"{path} was not written by torch.export.save, or by that of another version: {first_line(error)}"
        ) from None
    try:
        return as_net(program)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def as_net(program: torch.export.ExportedProgram) -> nn.Module:
    """A program as a module with the layers that its operations came from.

    Raises:
        ValueError: it takes or gives something else than one tensor, takes batches of one size only, or draws random numbers that
            cannot be switched off.
    """
    holder = program.module()
    assert isinstance(holder, fx.GraphModule)
    graph = holder.graph
    _check_inputs(graph)
    _remove_checks(holder)
    _tie(holder)
    _sort(holder, list(program.state_dict))
    for layer in _layers(holder):
        layer.restore(holder)
    _restore_dropout(holder)
    if still := next((node for node in graph.nodes if _is_random(node)), None):
        raise ValueError(
            f"its operation {still.target} draws random numbers, which an audit cannot switch off; export the net without them"
        )
    graph.eliminate_dead_code()
    graph.set_codegen(fx.graph.CodeGen())
    graph.lint()
    # The function alone: a GraphModule writes its code anew with every copy.
    return Program(holder, type(fx.GraphModule(holder, graph)).forward)


class Program(nn.Module):
    """The modules of a program, and the function that calls them."""

    def __init__(self, holder: nn.Module, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        for name in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            self.__dict__[name] = holder.__dict__[name]
        for name, value in vars(holder).items():  # tensors that the net keeps beside its state
            if isinstance(value, Tensor):
                self.register_buffer(name, value, persistent=False)
        self._run = run

    @property
    def is_ordered(self) -> bool:
        """Whether its state has the order of the exported net's, as it has unless a layer has buffers and no parameters."""
        within = (module for module in self.modules() if module is not self)
        return all(any(True for _ in module.parameters()) or not module.state_dict() for module in within)

    def forward(self, inputs: Tensor) -> Tensor:
        return self._run(self, inputs)


class _Attention(nn.Module):
    """Attention with dropout, which its operation has as a number."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask, self.p if self.training else 0.0, **options)


def _check_inputs(graph: fx.Graph) -> None:
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    results, _ = torch.utils._pytree.tree_flatten(output.args[0])
    if len(inputs) != 1 or len(results) != 1 or not isinstance(results[0], fx.Node):
        raise ValueError(f"the program takes {len(inputs)} inputs and gives {len(results)}, and a net takes and gives one tensor")
    output.args = (results[0],)
    batch = inputs[0].meta["val"].shape[0]
    if isinstance(batch, int):
        raise ValueError(
            f"the program takes batches of {batch} alone; export it with dynamic_shapes=({{0: torch.export.Dim.DYNAMIC}},), "
            "which names the operation that fixes the size"
        )


def _remove_checks(holder: fx.GraphModule) -> None:
    """Remove what only checks sizes and types: exported checks refuse a batch of one sample, which the operations can compute."""
    graph = holder.graph
    for node in list(graph.nodes)[::-1]:
        checks = node.op == "call_module" or (node.op == "call_function" and "_assert_" in str(node.target))
        if checks and not node.users:
            graph.erase_node(node)
            if node.op == "call_module":
                holder.delete_submodule(node.target)


def _tie(holder: nn.Module) -> None:
    """Make one parameter of those that a program stores once under several names."""
    first = dict[tuple[int, torch.Size, tuple[int, ...]], nn.Parameter]()
    for module in holder.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.numel():
                same = parameter.data_ptr(), parameter.shape, parameter.stride()
                setattr(module, name, first.setdefault(same, parameter))


def _sort(holder: nn.Module, names: Sequence[str]) -> None:
    """Put modules into the order of the net's state, by which messages may name their tensors."""
    place = {name: number for number, name in reversed(list(enumerate(names)))}
    for path, module in holder.named_modules():
        prefix = f"{path}." if path else ""
        first = {
            name: min((place[full] for full in place if full.startswith(f"{prefix}{name}.")), default=len(place))
            for name in module._modules
        }
        module._modules = dict(sorted(module._modules.items(), key=lambda item: first[item[0]]))


def _restore_dropout(holder: fx.GraphModule) -> None:
    """Put a layer in the place of each dropout, so that it can be switched off."""
    for node in list(holder.graph.nodes):
        layer: nn.Module
        if node.target == torch.ops.aten.dropout.default:
            inputs, p, training = _arguments(node).values()
            layer, args, options = nn.Dropout(p).train(training), [inputs], dict[str, Any]()
        elif node.target == torch.ops.aten.scaled_dot_product_attention.default:
            *args, p, causal, scale, grouped = _arguments(node).values()
            layer, options = _Attention(p), {"is_causal": causal, "scale": scale, "enable_gqa": grouped}
        else:
            continue
        name = f"_{node.name}"  # that of no module, as names of the net's own begin otherwise
        holder.add_module(name, layer)
        _replace(node, name, tuple(args), options)


@dataclass(frozen=True)
class _Call:
    """An operation of a layer.

    Attributes:
        inputs: the tensor that enters it.
        state: the layer's tensors by their names there.
        options: of the layer, besides the shapes of its tensors.
        build: the layer, of the shape of its first tensor.
    """

    inputs: fx.Node
    state: Mapping[str, fx.Node]
    options: tuple[Any, ...]
    build: Callable[[torch.Size], nn.Module]


def _linear(node: fx.Node) -> _Call:
    inputs, weight, bias = _arguments(node).values()
    return _Call(inputs, _given(weight=weight, bias=bias), (), lambda of: nn.Linear(of[1], of[0]))


def _convolution(node: fx.Node) -> _Call:
    inputs, weight, bias, *options = _arguments(node).values()
    stride, padding, dilation, groups = (tuple(it) if isinstance(it, list) else it for it in options)
    form = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}

    def build(of: torch.Size) -> nn.Module:
        return form[len(of)](of[1] * groups, of[0], tuple(of[2:]), stride, padding, dilation, groups)  # type: ignore[arg-type]

    return _Call(inputs, _given(weight=weight, bias=bias), (stride, padding, dilation, groups), build)


def _embedding(node: fx.Node) -> _Call:
    weight, inputs, pad, by_frequency, sparse = _arguments(node).values()
    own_pad = pad if pad >= 0 else None
    return _Call(
        inputs,
        {"weight": weight},
        (own_pad, by_frequency, sparse),
        lambda of: nn.Embedding(of[0], of[1], own_pad, scale_grad_by_freq=by_frequency, sparse=sparse),
    )


def _group_norm(node: fx.Node) -> _Call:
    inputs, groups, weight, bias, eps, _ = _arguments(node).values()
    return _Call(inputs, _given(weight=weight, bias=bias), (groups, eps), lambda of: nn.GroupNorm(groups, of[0], eps))


def _layer_norm(node: fx.Node) -> _Call:
    inputs, shape, weight, bias, eps, _ = _arguments(node).values()
    return _Call(inputs, _given(weight=weight, bias=bias), (eps,), lambda of: nn.LayerNorm(tuple(shape), eps))


def _batch_norm(node: fx.Node) -> _Call:
    inputs, weight, bias, mean, variance, training, momentum, eps, _ = _arguments(node).values()
    form = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[inputs.meta["val"].ndim]
    has, follows = weight is not None, mean is not None

    def build(of: torch.Size) -> nn.Module:
        return form(of[0], eps, momentum, has, follows).train(training)

    state = _given(weight=weight, bias=bias, running_mean=mean, running_var=variance)
    return _Call(inputs, state, (training, momentum, eps), build)


_CALLS: dict[Any, Callable[[fx.Node], _Call]] = {
    torch.ops.aten.linear: _linear,
    torch.ops.aten.conv1d: _convolution,
    torch.ops.aten.conv2d: _convolution,
    torch.ops.aten.conv3d: _convolution,
    torch.ops.aten.embedding: _embedding,
    torch.ops.aten.group_norm: _group_norm,
    torch.ops.aten.layer_norm: _layer_norm,
    torch.ops.aten.batch_norm: _batch_norm,
}


def _call(node: fx.Node) -> _Call:
    return _CALLS[node.target.overloadpacket](node)  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Layer:
    """A layer: the module that holds its tensors, and the operations that read them, which agree."""

    place: str
    form: tuple[Any, ...]
    nodes: list[fx.Node] = field(default_factory=list)

    def restore(self, holder: fx.GraphModule) -> None:
        """Put the layer in the place of the module that holds its tensors."""
        place, first = holder.get_submodule(self.place), _call(self.nodes[0])
        with torch.device("meta"):
            layer = first.build(getattr(place, next(iter(first.state))).shape)
        layer._parameters.update({name: place._parameters.get(name) for name in layer._parameters})
        layer._buffers.update({name: place._buffers.get(name) for name in layer._buffers})
        owner, _, name = self.place.rpartition(".")
        setattr(holder.get_submodule(owner), name, layer)
        for node in self.nodes:
            _replace(node, self.place, (_call(node).inputs,))
        for node in list(holder.graph.nodes):  # the layer counts its batches by itself
            if node.target == torch.ops.aten.add_.Tensor and node.args[0].target == f"{self.place}.{_COUNT}":
                holder.graph.erase_node(node)


def _layers(holder: fx.GraphModule) -> list[_Layer]:
    """The layers of a program; none where operations disagree on its options (as its padding), or its weights are computed."""
    layers, disagree = dict[str, _Layer](), set[str]()
    aliases = defaultdict[int, list[str]](list)
    for name, parameter in holder.named_parameters(remove_duplicate=False):
        aliases[id(parameter)].append(name)
    for node in holder.graph.nodes:
        kind = getattr(node.target, "overloadpacket", None)
        if kind not in _CALLS:
            continue
        call = _call(node)
        form, places = (kind, call.options), _places(holder, node, call.state, aliases)
        same = next((place for place in places if place not in layers or layers[place].form == form), None)
        if same is not None:  # of tied weights, each kind gets a place of its own
            layers.setdefault(same, _Layer(same, form)).nodes.append(node)
        else:
            disagree.update(places)
    return [layer for place, layer in layers.items() if place not in disagree]


def _places(holder: fx.GraphModule, node: fx.Node, state: Mapping[str, fx.Node], aliases: Mapping[int, list[str]]) -> list[str]:
    """The modules that hold a layer's tensors by these names, and nothing else; first the one that was called."""
    if not state or any(tensor.op != "get_attr" for tensor in state.values()):
        return []
    name, first = next(iter(state.items()))
    owner, _, attribute = str(first.target).rpartition(".")
    tensor = getattr(holder.get_submodule(owner), attribute)
    places, called = list[str](), [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    for full in dict.fromkeys((str(first.target), *aliases[id(tensor)])):
        place = full.removesuffix(f".{name}")
        of_place = all(str(other.target) == f"{place}.{its}" for its, other in state.items() if its != name)
        if place != full and of_place and _holds(holder.get_submodule(place), state):
            places.append(place)
    return sorted(places, key=lambda place: place not in called)


def _holds(place: nn.Module, state: Mapping[str, fx.Node]) -> bool:
    """Whether a module holds the state of one layer, and nothing else."""
    own = {name for name, _ in (*place.named_parameters(recurse=False), *place.named_buffers(recurse=False))}
    return not list(place.children()) and own - {_COUNT} == state.keys()


def _is_random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers. That of recurrent layers does so only with dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    options = _arguments(node)
    return not ("dropout" in options and "train" in options and not (options["dropout"] and options["train"]))


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, with its defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = {argument.name: value for argument, value in zip(schema, node.args, strict=False)} | node.kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def _given(**state: fx.Node | None) -> dict[str, fx.Node]:
    return {name: node for name, node in state.items() if node is not None}


def _replace(node: fx.Node, module: str, args: tuple[Any, ...], options: Mapping[str, Any] | None = None) -> None:
    """Call a module in the place of an operation."""
    with node.graph.inserting_before(node):
        call = node.graph.call_module(module, args, dict(options or {}))
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)
