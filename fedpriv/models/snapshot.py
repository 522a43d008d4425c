"""Snapshots of what a net's modules hold, with which a net is restored, and compared."""

from __future__ import annotations

import cmath
import random
from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.parameters import ParameterSpace

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
_DEPTH = 3
"""Depth up to which nested lists are copied and compared."""


class _Held(NamedTuple):
    """A value that a module holds."""

    name: str
    owner: dict[str, Any]
    key: str
    value: Any
    copied: Any
    items: Any
    """The items of a list or dict; otherwise ``None``."""
    memory: Tensor | None
    """A tensor with the same memory as the value, so that the memory is not used for another tensor; otherwise ``None``."""

    @property
    def moved(self) -> bool:
        """Whether the tensor has other memory now, as after ``tensor.data = ...``."""
        return self.memory is not None and self.value.data_ptr() != self.memory.data_ptr()

    def refill(self) -> None:
        """Restore the object's value."""
        if self.moved:
            self.value.data = self.memory
        _refill(self.value, self.copied)


class State:
    """A snapshot of what a net's modules hold.

    It includes parameters, buffers, other tensors, arrays, numbers, random generators, and lists of these. Other objects, such as
    sparse tensors, are ignored.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._held = [
            _Held(name, owner, key, value, _copied(value), _items(value), value.data if _is_plain(value) else None)
            for name, owner, key, value in values_of(net)
        ]
        self._names = {held.name for held in self._held}

    def replaced(self) -> Iterator[str]:
        """The names that now refer to another object, or to none."""
        return (held.name for held in self._held if held.owner.get(held.key) is not held.value)

    def moved(self) -> Iterator[str]:
        """The names of tensors that have other memory now."""
        return (held.name for held in self._held if held.moved)

    def within(self, space: ParameterSpace) -> set[str]:
        """The names of the tensors in the row, including all names of tied ones."""
        ids = {id(held.value) for held in self._held if held.name in space}
        return {held.name for held in self._held if id(held.value) in ids}

    def changed(self) -> Iterator[str]:
        """The names with another value now, and new names."""
        yield from (held.name for held in self._held if not _equal(_copied(held.owner.get(held.key)), held.copied))
        yield from (name for name, *_ in values_of(self._net) if name not in self._names)

    def restore(self) -> None:
        """Restore all objects and their values."""
        for name, owner, key, _ in list(values_of(self._net)):
            if name not in self._names:
                del owner[key]
        for held in self._held:
            held.owner[held.key] = held.value
            held.refill()
            if held.items is not None:
                held.value.clear()
                held.value.update(held.items) if isinstance(held.value, dict) else held.value.extend(held.items)

    def refill(self, names: Container[str]) -> None:
        """Restore the values of ``names`` in their former objects, even if the net has others now."""
        for held in self._held:
            if held.name in names:
                held.refill()


def _items(value: Any) -> Any:
    return value.copy() if isinstance(value, list | deque | dict) else None


def values_of(net: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Yield name, attributes of the owning module, key among these, and value of everything that the modules hold."""
    modules = list(net.named_modules())
    # Parameters and buffers come first, as other attributes may be views of them.
    owners = [(where, owner) for where, module in modules for owner in (module._parameters, module._buffers)]
    owners += [(where, vars(module)) for where, module in modules]
    for where, owner in owners:
        for key, value in owner.items():
            if key not in _OF_TORCH:
                yield f"{where}.{key}" if where else key, owner, key, value


def _is_plain(value: Any) -> bool:
    """Whether a value is a dense tensor with memory of its own; sparse, nested and meta tensors are not."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not (value.is_nested or value.is_meta)


def _copied(value: Any, depth: int = _DEPTH) -> Any:
    """A copy of a value; ``None`` for objects that are ignored."""
    if isinstance(value, Tensor):
        return value.detach().clone() if _is_plain(value) else None
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value.copy()
    if (state := _generator_state(value)) is not None:
        return state
    if isinstance(value, dict) and depth:
        return {key: _copied(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | deque) and depth:
        return [_copied(item, depth - 1) for item in value]
    return value if isinstance(value, bool | int | float | complex | str) else None


def _generator_state(value: Any) -> Any:
    """The state of a random generator of torch, NumPy or Python; ``None`` for other objects."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return _copied(value.bit_generator.state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    return None


def _equal(first: Any, second: Any) -> bool:
    """Whether two copies are equal, where NaN equals NaN."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if (first.dtype, first.device, first.shape) != (second.dtype, second.device, second.shape):
            return False
        numbers = first.is_floating_point() or first.is_complex()
        return torch.equal(first, second) or (numbers and torch.allclose(first, second, rtol=0.0, atol=0.0, equal_nan=True))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_equal(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_equal, first, second))
    if type(first) is not type(second) or isinstance(first, Tensor | np.ndarray | dict | list):
        return False
    return bool(first == second) or (isinstance(first, float | complex) and cmath.isnan(first) and cmath.isnan(second))


@torch.no_grad()
def _refill(value: Any, copied: Any) -> None:
    if copied is None or (isinstance(value, Tensor | np.ndarray) and _equal(_copied(value), copied)):
        return  # do not write what is unchanged: it may be read-only
    if isinstance(value, Tensor):
        if not any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
            value.data.copy_(copied)  # an expanded tensor cannot be written; its values are in another one
    elif isinstance(value, np.ndarray):
        value[...] = copied
    elif isinstance(value, torch.Generator):
        value.set_state(copied)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = copied
    elif isinstance(value, random.Random):
        value.setstate(copied)


@contextmanager
def unchanged(net: nn.Module) -> Iterator[State]:
    """A block after which the net has its former state and training modes; yields a snapshot of the state."""
    state, modes = State(net), {module: module.training for module in net.modules()}
    try:
        yield state
    finally:
        state.restore()
        for module, training in modes.items():
            module.training = training
