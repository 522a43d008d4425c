"""What a net holds at one moment, and whether a pass leaves something behind that no client's row has.

A process has one net, which its clients use in turn: each sets the row (:class:`fedpriv.parameters.ParameterSpace`) and nothing
else. What a forward pass leaves elsewhere would go from client to client, and the results would depend on how these are spread
over processes.
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
"""Lists within lists up to here are looked into."""
_TOKENS = 8
"""Length of made-up texts."""


class _Held(NamedTuple):
    name: str
    owner: dict[str, Any]
    key: str
    value: Any
    copied: Any
    items: Any
    """Of a list or dict, what it holds; otherwise ``None``."""
    memory: Tensor | None
    """Of a tensor, another one with the same memory; kept alive, so that no new tensor gets that address."""

    @property
    def moved(self) -> bool:
        """Whether the tensor has other memory by now, as after ``tensor.data = ...``."""
        return self.memory is not None and self.value.data_ptr() != self.memory.data_ptr()

    def refill(self) -> None:
        """Put the value back into the object."""
        if self.moved:
            self.value.data = self.memory
        _refill(self.value, self.copied)


class State:
    """The parameters, buffers, and other tensors, arrays, numbers, generators and lists of them that a net's modules hold at
    present.

    Other objects, such as sparse tensors, are not looked into.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._held = list(_held(net))
        self._names = {held.name for held in self._held}

    def replaced(self) -> Iterator[str]:
        """The names under which another object is found now, or none."""
        return (held.name for held in self._held if held.owner.get(held.key) is not held.value)

    def moved(self) -> Iterator[str]:
        """The names of tensors that have other memory now, or none."""
        return (held.name for held in self._held if held.moved)

    def within(self, space: ParameterSpace) -> set[str]:
        """The names of the row's tensors, also the other names of tied ones."""
        found = {id(held.value) for held in self._held if held.name in space}
        return {held.name for held in self._held if id(held.value) in found}

    def changed(self) -> Iterator[str]:
        """The names under which another value is found now, and those that are new."""
        yield from (held.name for held in self._held if not _equal(_copied(held.owner.get(held.key)), held.copied))
        yield from (name for name, *_ in _values(self._net) if name not in self._names)

    def restore(self) -> None:
        """Put the objects back, with the values that they had."""
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
        """Put the values of ``names`` back into the objects that held them, even if the net has others by now."""
        for held in self._held:
            if held.name in names:
                held.refill()


def _held(net: nn.Module) -> Iterator[_Held]:
    for name, owner, key, value in _values(net):
        items = value.copy() if isinstance(value, list | deque | dict) else None
        memory = value.data if _is_plain(value) else None
        yield _Held(name, owner, key, value, _copied(value), items, memory)


def _values(net: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """The name of each value, the attributes of the module that holds it, its key in them, and the value."""
    modules = list(net.named_modules())
    # Parameters and buffers of all modules come first: other attributes may be views of them.
    owners = [(where, owner) for where, module in modules for owner in (module._parameters, module._buffers)]
    owners += [(where, vars(module)) for where, module in modules]
    for where, owner in owners:
        for key, value in owner.items():
            if key not in _OF_TORCH:
                yield f"{where}.{key}" if where else key, owner, key, value


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor whose numbers lie in memory one by one; a sparse one has others, and some have only a shape."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not (value.is_nested or value.is_meta)


def _copied(value: Any, depth: int = _DEPTH) -> Any:
    """A copy of a value, or ``None`` in the place of objects that are not looked into."""
    if isinstance(value, Tensor):
        return value.detach().clone() if _is_plain(value) else None
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value.copy()
    if (state := _drawn(value)) is not None:
        return state
    if isinstance(value, dict) and depth:
        return {key: _copied(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list | tuple | deque) and depth:
        return [_copied(one, depth - 1) for one in value]
    return value if isinstance(value, bool | int | float | complex | str) else None


def _drawn(value: Any) -> Any:
    """The state of a generator of torch, NumPy or Python; ``None``: it is none, or has no state."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return _copied(value.bit_generator.state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    return None


def _equal(one: Any, other: Any) -> bool:
    """Whether two copies are the same; NaN is the same as NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.dtype, one.device, one.shape) != (other.dtype, other.device, other.shape):
            return False
        numbers = one.is_floating_point() or one.is_complex()
        return torch.equal(one, other) or (numbers and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if type(one) is not type(other) or isinstance(one, Tensor | np.ndarray | dict | list):
        return False
    return bool(one == other) or (isinstance(one, float | complex) and cmath.isnan(one) and cmath.isnan(other))


@torch.no_grad()
def _refill(value: Any, copied: Any) -> None:
    if copied is None or (isinstance(value, Tensor | np.ndarray) and _equal(_copied(value), copied)):
        return  # some could not be written, such as constant arrays
    if isinstance(value, Tensor):
        if not any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
            value.data.copy_(copied)  # an expanded one cannot be written, and has its values from another tensor
    elif isinstance(value, np.ndarray):
        value[...] = copied
    elif isinstance(value, torch.Generator):
        value.set_state(copied)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = copied
    elif isinstance(value, random.Random):
        value.setstate(copied)


def made_up(net: Net, seed: int = 0) -> Tensor | None:
    """Two samples ``(2, *input_shape)`` with entries in [0, 1); ``None`` for a net of token ids or pairs."""
    samples = samples_for(net, seed)
    return samples if isinstance(samples, Tensor) and samples.is_floating_point() else None


def samples_for(net: Net, seed: int = 0) -> Inputs:
    """Two samples of whatever the net takes: entries in [0, 1), and texts of ``_TOKENS`` random tokens, none of them padding."""
    draws, like = generator(seed, "made up"), next(net.parameters())

    def drawn(encoder: nn.Module, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(encoder, TextEncoder):
            return torch.rand((2, *shape), generator=draws).to(like)
        words = int(encoder.transformer.config.vocab_size)
        ids = (encoder.pad + torch.randint(1, words, (2, _TOKENS), generator=draws)) % words
        return ids.to(like.device)

    def of_branch(branch: Branch) -> Tensor:
        # Without an encoder, the branch takes features of a frozen one.
        is_frozen = isinstance(branch.encoder, nn.Identity)
        return drawn(branch.encoder, (branch.fc.in_features,) if is_frozen else net.input_shape)

    if isinstance(net.encoder, Fusion):
        return Pairs(of_branch(net.encoder.image), of_branch(net.encoder.text))
    return drawn(net.encoder, net.input_shape)


def _unlike(net: Net, seed: int) -> Inputs:
    """Two samples of another scale and sign than those of :func:`samples_for`, and of other tokens where the seed is another."""
    return each(samples_for(net, seed), lambda part: 10 - 30 * part if part.is_floating_point() else part)


@torch.no_grad()
def perturb(parameters: Iterable[Tensor], seed: int = 0, most: float | None = None) -> None:
    """Add to each parameter random numbers, as zeros at the start would hide what comes of them.

    Args:
        most: their largest magnitude; ``None``: that of usual initial ones. Vectors then get up to 1, others up to three divided
            by the root of the number of inputs, so that deep nets stay finite.
    """
    draws = generator(seed, "perturbed")
    for parameter in parameters:
        if not (parameter.is_floating_point() and parameter.numel()):
            continue
        usual = 1.0 if parameter.ndim < 2 else 3 * (len(parameter) / parameter.numel()) ** 0.5
        parameter += (usual if most is None else most) * (2 * torch.rand(parameter.shape, generator=draws) - 1).to(parameter)


def interact(net: Net, training: bool = True) -> bool:
    """Whether, in training or in evaluation mode, what a net makes of a sample depends on the other samples of the batch; the net
    is left as it is."""
    x = samples_for(net)
    beside = join([split(x, 1)[0], split(_unlike(net, 1), 1)[1]])
    with unchanged(net):
        net.train(training)
        perturb(net.parameters())
        moved = State(net)
        beside_one = _logits(net, x)[0]
        moved.restore()
        beside_other = _logits(net, beside)[0]
        return not torch.allclose(beside_one, beside_other, rtol=1e-4, atol=1e-5, equal_nan=True)


@contextmanager
def unchanged(net: Net) -> Iterator[State]:
    """A block that leaves the net as it is: what it holds, which it gets, and whether its modules are in training mode."""
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
        _logits(net, samples_for(net))
        return [name for name in state.changed() if name in buffers]


def carried(net: Net, space: ParameterSpace) -> str | None:
    """The name of what goes from client to client beside the row, and decides what the next one computes; ``None``: nothing.

    Two samples are passed through the net in training and in evaluation mode. A tensor of the row that gets other memory counts
    in any case, as it leaves the row for good; so does a persistent buffer of floats, which is kept to be used later. Of what
    changes outside the row, or is a tensor of the row and replaced by another, so does a whole number that goes on changing: a
    schedule may go by it later. Of the rest and the counters of normalisation layers the next outputs tell, since a net may also
    store what is only looked at, such as attention weights. The counters of torch's own layers decide nothing where there is a
    momentum. The net is left as it is.
    """
    x = samples_for(net)
    with unchanged(net) as state:
        for moved in (True, False):  # of outputs that are zero at first, running means would stay zero
            if moved:
                perturb(net.parameters())
            with suppress(Exception):  # other weights may be impossible; and what cannot be trained says so in training
                return _carried(net, x, space)
            state.restore()
        return None


def _carried(net: Net, x: Inputs, space: ParameterSpace) -> str | None:
    state, constants = State(net), constant_buffers(net).keys()
    rows = state.within(space)
    _pass_both(net, x)
    if (moved := next((name for name in state.moved() if name in rows), None)) is not None:
        return moved
    left = _left_outside(net, state, rows)
    if (statistic := next((name for name in left if name in constants), None)) is not None:
        return statistic
    if numbers := [name for name in left if _is_whole_number(net, name) and not name.endswith(f".{_COUNTER}")]:
        # With the same row and samples, what follows from them, such as the size of a batch, is the same again; a counter is not.
        state.refill(space)
        settled = State(net)
        _pass_both(net, x)
        changing = set(settled.changed())
        if (number := next((name for name in numbers if name in changing), None)) is not None:
            return number
    return left[0] if left and _depends(net, x, state, space) else None


def _left_outside(net: Net, state: State, rows: set[str]) -> list[str]:
    """What has changed outside the row, and what is of the row and was replaced."""
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
    """Whether outputs, or what the row becomes, depend on passes that came before the row was set."""

    def told() -> list[Tensor]:
        found = _pass_both(net, x)
        return [*found, *(tensor.detach().clone() for name, tensor in _tensors(net) if name in space)]

    state.restore()
    alone = told()
    state.restore()
    for seed in (1, 2, 3):
        _pass_both(net, _unlike(net, seed))
    state.refill(space)
    return not all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in zip(alone, told(), strict=True))


def _tensors(net: Net) -> Iterator[tuple[str, Tensor]]:
    yield from net.named_parameters()
    yield from net.named_buffers()


def _pass_both(net: Net, x: Inputs) -> list[Tensor]:
    return [_logits(net.train(training), x) for training in (True, False)]


@contextmanager
def drawn_alike() -> Iterator[None]:
    """A block without gradients and with the same draws (dropout) each time, also of Python's and NumPy's global generators.

    Nothing is compiled in it: code that is compiled here would serve later passes, whose hooks are others.
    """
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        with eager, global_rng(0, "dropout"), torch.no_grad():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _logits(net: Net, x: Inputs) -> Tensor:
    """The logits of samples ``(B, C)``."""
    with drawn_alike():
        logits: Tensor = net(each(x, lambda part: part.clone())).logits
        return logits
