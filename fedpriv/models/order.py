"""The order of a net's layers in a forward pass, which defines "the last N layers".

The order of definition may differ, and the logits may not depend on some layers. So a forward pass is observed: a parameter's
position is its last use, and a layer's position (of a module with its own parameters) is the last use of any of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedpriv.models.net import Net
from fedpriv.models.snapshot import unchanged
from fedpriv.models.state import fixed_randomness, random_samples
from fedpriv.parameters import layer_of


@dataclass(frozen=True)
class Order:
    """The order of a net's layers.

    Attributes:
        layers: names of the trainable parameters, in forward order; those in ``apart`` come first.
        apart: names in ``layers`` that the logits do not depend on; they do not count as layers.
        linear: names of the fully connected layers that the logits depend on, in forward order.
    """

    layers: tuple[str, ...]
    apart: frozenset[str]
    linear: tuple[str, ...]


def order_of(net: Net) -> Order:
    """The order of a net's layers in a pass of two samples in evaluation mode; the net does not change.

    If the pass fails, the order is that of definition; training will raise the error.
    """
    parameters = dict(net.named_parameters())
    positions = dict.fromkeys(parameters, 0)
    with suppress(Exception):
        positions = _positions(net, parameters)
    by_layer: dict[str, int] = {}
    for name, position in positions.items():
        layer = layer_of(name)
        by_layer[layer] = max(position, by_layer.get(layer, 0))
    trainable = [name for name, parameter in parameters.items() if parameter.requires_grad]
    apart = [name for name in trainable if name not in positions]
    in_order = sorted((name for name in trainable if name in positions), key=lambda name: by_layer[layer_of(name)])
    by_linear = dict[str, int]()
    for where, module in net.named_modules():
        names = [f"{where}.{name}" for name, _ in module.named_parameters()]  # also those of a parametrisation of its weights
        if isinstance(module, nn.Linear) and (used := [positions[name] for name in names if name in positions]):
            by_linear[where] = max(used)
    return Order((*apart, *in_order), frozenset(apart), tuple(sorted(by_linear, key=by_linear.__getitem__)))


def _positions(net: Net, parameters: dict[str, nn.Parameter]) -> dict[str, int]:
    """The last use of each parameter that the logits depend on, as the number of an operation."""
    samples = random_samples(net)
    with unchanged(net), fixed_randomness(), torch.enable_grad(), _Uses(parameters.values()) as uses:
        logits = net.eval()(samples).logits
    reached = _reached(logits)
    return {
        name: uses.last.get(id(parameter), 0)
        for name, parameter in parameters.items()
        if (id(parameter) in reached if parameter.requires_grad else id(parameter) in uses.last)
    }


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations within a block.

    Attributes:
        last: tensor id -> the number of the last operation that uses the tensor.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last: dict[int, int] = {}
        self._watched = {id(tensor) for tensor in tensors}
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, torch would import its compiler, which takes longer than importing torch."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count += 1
        self.last |= {id(leaf): self._count for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._watched}
        return func(*args, **(kwargs or {}))


def _reached(logits: Tensor) -> set[int]:
    """The ids of the tensors that the gradient of the logits reaches."""
    leaves, visited, pending = set[int](), set[Any](), [logits.grad_fn]
    while pending:
        if (node := pending.pop()) is None or node in visited:
            continue
        visited.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
        pending += [before for before, _ in node.next_functions]
    return leaves
