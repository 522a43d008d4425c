"""A function of several problems at once, for any net."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Values = Tensor | Mapping[str, Tensor]


def vmap_or_loop(function: Callable[..., Any], *given: Values) -> Any:
    """``function`` of every problem: tensors ``(n, ...)``, or tensors by name, without their first dimension; results stacked.

    By ``vmap``; one after another where the net cannot be computed so: its branches depend on values, or it is recurrent. The
    function may take a gradient, and its results may be differentiated.
    """
    with _differentiable():
        try:
            with _WeightsApart():
                return vmap(function)(*given)
        except RuntimeError:
            pass
        made = [function(*(_at(one, i) for one in given)) for i in range(_count(given[0]))]
        return _stacked(made)


class _WeightsApart(TorchFunctionMode):
    """Within, BatchNorm, LayerNorm and InstanceNorm multiply by their weight and add their bias in steps of their own.

    Under ``vmap``, torch's gradient at that weight takes the mean and deviation for constants, so that its derivative is wrong
    (torch 2.15). It is right for GroupNorm, and where they are running statistics.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See :class:`torch.overrides.TorchFunctionMode`."""
        if func not in (F.batch_norm, F.layer_norm, F.instance_norm):
            return func(*args, **(kwargs or {}))
        bound = signature(func).bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        given = bound.arguments
        if not given.get("training", True) or not given.get("use_input_stats", True):
            return func(**given)
        weight, bias = given.pop("weight"), given.pop("bias")
        found: Tensor = func(**given)
        # LayerNorm has a value for each entry of the last dimensions, the others one per channel.
        shape = given.get("normalized_shape", (-1,) + (1,) * (found.ndim - 2))
        found = found if weight is None else found * weight.view(shape)
        return found if bias is None else found + bias.view(shape)


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
