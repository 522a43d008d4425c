"""Snapshots of a net's state, and checks that a forward pass leaves no state outside the row.

The clients of a process share one net: each client sets the row (:class:`fedpriv.parameters.ParameterSpace`), and nothing else.
    Any other state that a forward pass changes would leak from client to client, and the results would depend on how clients are
    spread over processes.
"""

from __future__ import annotations

import cmath
import random
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.models.net import Net
from fedpriv.models.pairs.fusion import Branch, Fusion
from fedpriv.models.text.transformer import TextEncoder
from fedpriv.parameters import ParameterSpace, constant_buffers
from fedpriv.samples import Inputs, Pairs, each, join, split
from fedpriv.seeding import generator, global_rng

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
_COUNTER = "num_batches_tracked"
_DEPTH = 3
"""Depth up to which nested lists are copied and compared."""
_TOKENS = 8
"""Number of tokens of random texts."""


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
        self._held = list(_held(net))
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
        yield from (name for name, *_ in _values(self._net) if name not in self._names)

    def restore(self) -> None:
        """Restore all objects and their values."""
        for name, owner, key, _ in list(_values(self._net)):
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


def _held(net: nn.Module) -> Iterator[_Held]:
    for name, owner, key, value in _values(net):
        items = value.copy() if isinstance(value, list | deque | dict) else None
        memory = value.data if _is_plain(value) else None
        yield _Held(name, owner, key, value, _copied(value), items, memory)


def _values(net: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
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


def random_images(net: Net, seed: int = 0) -> Tensor | None:
    """Two random images ``(2, *input_shape)`` in [0, 1); ``None`` for a net for texts or pairs."""
    samples = random_samples(net, seed)
    return samples if isinstance(samples, Tensor) and samples.is_floating_point() else None


def random_samples(net: Net, seed: int = 0) -> Inputs:
    """Two random inputs for a net: images with entries in [0, 1), and texts of ``_TOKENS`` tokens without padding."""
    noise, like = generator(seed, "made up"), next(net.parameters())

    def draw(encoder: nn.Module, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(encoder, TextEncoder):
            return torch.rand((2, *shape), generator=noise).to(like)
        words = int(encoder.transformer.config.vocab_size)
        ids = (encoder.pad + torch.randint(1, words, (2, _TOKENS), generator=noise)) % words
        return ids.to(like.device)

    def draw_for(branch: Branch) -> Tensor:
        # Without an encoder, the branch takes features of a frozen one.
        is_frozen = isinstance(branch.encoder, nn.Identity)
        return draw(branch.encoder, (branch.fc.in_features,) if is_frozen else net.input_shape)

    if isinstance(net.encoder, Fusion):
        return Pairs(draw_for(net.encoder.image), draw_for(net.encoder.text))
    return draw(net.encoder, net.input_shape)


def _other_samples(net: Net, seed: int) -> Inputs:
    """Two random inputs with another scale and sign than those of :func:`random_samples`, and with other tokens."""
    return each(random_samples(net, seed), lambda part: 10 - 30 * part if part.is_floating_point() else part)


@torch.no_grad()
def perturb(parameters: Iterable[Tensor], seed: int = 0, most: float | None = None) -> None:
    """Add random numbers to parameters, since initial zeros would hide a dependence on other values.

    Args:
        most: largest magnitude of the numbers; ``None``: 1 for vectors, and 3 / sqrt(number of inputs) for other parameters, so
            that the outputs of deep nets are finite.
    """
    noise = generator(seed, "perturbed")
    for parameter in parameters:
        if not (parameter.is_floating_point() and parameter.numel()):
            continue
        default = 1.0 if parameter.ndim < 2 else 3 * (len(parameter) / parameter.numel()) ** 0.5
        parameter += (default if most is None else most) * (2 * torch.rand(parameter.shape, generator=noise) - 1).to(parameter)


def samples_interact(net: Net, training: bool = True) -> bool:
    """Whether a net's outputs for a sample depend on the other samples of the batch, in training or evaluation mode."""
    x = random_samples(net)
    other_batch = join([split(x, 1)[0], split(_other_samples(net, 1), 1)[1]])
    with unchanged(net):
        net.train(training)
        perturb(net.parameters())
        perturbed = State(net)
        first = _logits(net, x)[0]
        perturbed.restore()
        second = _logits(net, other_batch)[0]
        return not torch.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True)


@contextmanager
def unchanged(net: Net) -> Iterator[State]:
    """A block after which the net is as before it: its state, a snapshot of which is yielded, and its training modes."""
    state, modes = State(net), {module: module.training for module in net.modules()}
    try:
        yield state
    finally:
        state.restore()
        for module, training in modes.items():
            module.training = training


def changed_by_data(net: Net) -> list[str]:
    """The names of the buffers that a forward pass changes, such as running statistics."""
    if not (buffers := dict(net.named_buffers())):
        return []
    with unchanged(net) as state:
        _logits(net, random_samples(net))
        return [name for name in state.changed() if name in buffers]


def find_hidden_state(net: Net, space: ParameterSpace) -> str | None:
    """Find state outside the row that would leak from client to client and affect results; ``None``: there is none.

    Two samples are passed through the net in training and in evaluation mode, and what they change is inspected. Reported are

    * a tensor of the row that moves to other memory, and so is no longer part of the row;
    * a persistent floating-point buffer outside the row that changes;
    * a whole number that keeps changing, such as a counter, since a schedule may depend on it later;
    * anything else that changes or is replaced, if the next outputs depend on it. (A net may also store values that it never
      reads, such as attention weights.)

    The counters of torch's own normalisation layers are ignored, as nothing depends on them if there is a momentum. The net does
    not change.

    Returns:
        the name of the tensor or attribute.
    """
    x = random_samples(net)
    with unchanged(net) as state:
        for perturbed in (True, False):  # perturbed first: with initial outputs of zero, running means would not change
            if perturbed:
                perturb(net.parameters())
            with suppress(Exception):  # the net may not allow other weights; if it fails anyway, training will raise the error
                return _find_hidden_state(net, x, space)
            state.restore()
        return None


def _find_hidden_state(net: Net, x: Inputs, space: ParameterSpace) -> str | None:
    state, constants = State(net), constant_buffers(net).keys()
    rows = state.within(space)
    _pass_both(net, x)
    if (moved := next((name for name in state.moved() if name in rows), None)) is not None:
        return moved
    changed = _changed_outside(net, state, rows)
    if (statistic := next((name for name in changed if name in constants), None)) is not None:
        return statistic
    if numbers := [name for name in changed if _is_whole_number(net, name) and not name.endswith(f".{_COUNTER}")]:
        # After a second pass of the same samples, a number that depends on them alone is the same; a counter is not.
        state.refill(space)
        settled = State(net)
        _pass_both(net, x)
        changing = set(settled.changed())
        if (number := next((name for name in numbers if name in changing), None)) is not None:
            return number
    return changed[0] if changed and _depends(net, x, state, space) else None


def _changed_outside(net: Net, state: State, rows: set[str]) -> list[str]:
    """The names of what has changed outside the row, and of tensors of the row that were replaced."""
    counters = {
        f"{where}.{_COUNTER}"
        for where, module in net.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and type(module).__module__.startswith("torch.nn.")
    }
    replaced = [name for name in state.replaced() if name in rows]
    return [*replaced, *(name for name in state.changed() if name not in rows | counters)]


def _is_whole_number(net: Net, name: str) -> bool:
    value = next((value for other, _, _, value in _values(net) if other == name), None)
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_floating_point()
    return isinstance(value, bool | int)


def _depends(net: Net, x: Inputs, state: State, space: ParameterSpace) -> bool:
    """Whether outputs, or the updated row, depend on passes before the row was set."""

    def results() -> list[Tensor]:
        logits = _pass_both(net, x)
        return [*logits, *(tensor.detach().clone() for name, tensor in _tensors(net) if name in space)]

    state.restore()
    expected = results()
    state.restore()
    for seed in (1, 2, 3):
        _pass_both(net, _other_samples(net, seed))
    state.refill(space)
    return not all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in zip(expected, results(), strict=True))


def _tensors(net: Net) -> Iterator[tuple[str, Tensor]]:
    yield from net.named_parameters()
    yield from net.named_buffers()


def _pass_both(net: Net, x: Inputs) -> list[Tensor]:
    return [_logits(net.train(training), x) for training in (True, False)]


@contextmanager
def fixed_randomness() -> Iterator[None]:
    """A block without gradients in which the global generators of torch, Python and NumPy are seeded, and then restored.

    Nothing is compiled in it, because later passes, with other hooks, would use the compiled code.
    """
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        with eager, global_rng(0, "dropout"), torch.no_grad():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _logits(net: Net, x: Inputs) -> Tensor:
    """The logits of samples ``(B, C)``."""
    with fixed_randomness():
        logits: Tensor = net(each(x, lambda part: part.clone())).logits
        return logits
