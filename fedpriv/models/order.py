"""The order of a net's layers in a forward pass, by which "the last N layers" has a meaning.

A net may define its layers in another order, and may have some that its logits do not depend on. So the order is that in which a
pass uses the parameters: each counts where it is used last, and a layer, which is a module with the parameters that are its own,
where the last of these is. A parameter that belongs to no called module thus has its place, too.
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
from fedpriv.models.state import drawn_alike, samples_for, unchanged
from fedpriv.parameters import layer_of


@dataclass(frozen=True)
class Order:
    """
    Attributes:
        layers: names of the parameters that learn, in forward order; those in ``apart`` come first.
        apart: those of them that the logits do not depend on, which are no layers where layers are counted.
        linear: names of the fully connected layers that the logits depend on, in forward order.
    """

    layers: tuple[str, ...]
    apart: frozenset[str]
    linear: tuple[str, ...]


def order_of(net: Net) -> Order:
    """The order of a net's layers, by a pass of two samples in evaluation mode; the net is left as it is.

    Of a net that fails here everything counts, in the order of definition; why it fails is told where it is trained.
    """
    parameters = dict(net.named_parameters())
    places = dict.fromkeys(parameters, 0)
    with suppress(Exception):
        places = _places(net, parameters)
    of_module: dict[str, int] = {}
    for name, place in places.items():
        owner = layer_of(name)
        of_module[owner] = max(place, of_module.get(owner, 0))
    learn = [name for name, parameter in parameters.items() if parameter.requires_grad]
    apart = [name for name in learn if name not in places]
    counted = sorted((name for name in learn if name in places), key=lambda name: of_module[layer_of(name)])
    of_linear = {
        where: max(found)
        for where, module in net.named_modules()
        if isinstance(module, nn.Linear) and (found := [places[name] for name in _within(where, module) if name in places])
    }
    return Order((*apart, *counted), frozenset(apart), tuple(sorted(of_linear, key=of_linear.__getitem__)))


def _within(where: str, module: nn.Module) -> Iterable[str]:
    """The names of a module's parameters in the net, also of those behind a parametrisation of its weights."""
    return (f"{where}.{name}" for name, _ in module.named_parameters())


def _places(net: Net, parameters: dict[str, nn.Parameter]) -> dict[str, int]:
    """When each parameter is used last; without those that the logits do not depend on, as far as these have a gradient."""
    samples = samples_for(net)
    with unchanged(net), drawn_alike(), torch.enable_grad(), _Uses(parameters.values()) as uses:
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
        last: the last one that takes a tensor, by the tensor's id.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last: dict[int, int] = {}
        self._watched = {id(tensor) for tensor in tensors}
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, which takes longer than torch itself, to keep it away from the method below."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count += 1
        self.last |= {id(leaf): self._count for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._watched}
        return func(*args, **(kwargs or {}))


def _reached(logits: Tensor) -> set[int]:
    """The ids of the tensors that the gradient of the logits reaches."""
    found, seen, left = set[int](), set[Any](), [logits.grad_fn]
    while left:
        if (node := left.pop()) is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add(id(leaf))
        left += [before for before, _ in node.next_functions]
    return found
