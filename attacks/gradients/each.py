"""A function of several problems at once, for any net."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

Values = Tensor | Mapping[str, Tensor]


def for_each(function: Callable[..., Any], *given: Values) -> Any:
    """``function`` of every problem: tensors ``(n, ...)``, or tensors by name, without their first dimension; results stacked.

    By ``vmap``; one after another where the net cannot be computed so: its branches depend on values, or it is recurrent.
    """
    with _differentiable():
        try:
            return vmap(function)(*given)
        except RuntimeError:
            pass
        made = [function(*(_at(one, i) for one in given)) for i in range(_count(given[0]))]
        return _stacked(made)


@contextmanager
def _differentiable() -> Iterator[None]:
    """Within, ``nn.TransformerEncoderLayer`` does not take its fast path, which has no derivative.

    Under ``vmap`` it does not see that a derivative is asked for.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _count(given: Values) -> int:
    return len(given) if isinstance(given, Tensor) else len(next(iter(given.values())))


def _at(given: Values, i: int) -> Any:
    return given[i] if isinstance(given, Tensor) else {name: tensor[i] for name, tensor in given.items()}


def _stacked(made: list[Any]) -> Any:
    if isinstance(made[0], Tensor):
        return torch.stack(made)
    return {name: torch.stack([one[name] for one in made]) for name in made[0]}
