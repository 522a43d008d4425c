"""``vmap`` with a fallback to a loop, for functions of any net."""

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


def vmap_or_loop(function: Callable[..., Any], *arguments: Values) -> Any:
    """Apply ``function`` to each of ``n`` problems and stack the results.

    Uses ``vmap``, or a loop for nets that ``vmap`` does not support (recurrent layers, branches that depend on values). The
    function may take gradients itself, and its results can be differentiated.

    Args:
        arguments: tensors ``(n, ...)``, or dictionaries of them; the function gets them without the first dimension.
    """
    with _differentiable():
        try:
            with _UnderVmap():
                return vmap(function)(*arguments)
        except RuntimeError:
            pass
        results = [function(*(_at(argument, i) for argument in arguments)) for i in range(_count(arguments[0]))]
        return _stacked(results)


class _UnderVmap(TorchFunctionMode):
    """A mode in which BatchNorm, LayerNorm and InstanceNorm apply their weight and bias as separate operations, and the mean
    cross-entropy of classes is computed by operations that ``vmap`` knows.

    The norms work around an error of torch 2.15: under ``vmap``, the gradient at the weight treats mean and variance as
    constants, so that its derivative is wrong. GroupNorm, and norms that use running statistics, are right. The cross-entropy has
    the same bits as torch's, whose decomposition under ``vmap`` is in Python and first imports sympy, for 0.3 to 2 CPU seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See :class:`torch.overrides.TorchFunctionMode`."""
        if func not in (F.cross_entropy, F.batch_norm, F.layer_norm, F.instance_norm):
            return func(*args, **(kwargs or {}))
        bound = signature(func).bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        given = bound.arguments
        if func is F.cross_entropy:
            return _cross_entropy(**given)
        if not given.get("training", True) or not given.get("use_input_stats", True):
            return func(**given)
        weight, bias = given.pop("weight"), given.pop("bias")
        output: Tensor = func(**given)
        # LayerNorm has a weight per entry of the last dimensions, the others one per channel.
        shape = given.get("normalized_shape", (-1,) + (1,) * (output.ndim - 2))
        output = output if weight is None else output * weight.view(shape)
        return output if bias is None else output + bias.view(shape)


def _cross_entropy(input: Tensor, target: Tensor, **options: Any) -> Tensor:
    """:func:`torch.nn.functional.cross_entropy` of logits ``(B, C, ...)`` and classes ``(B, ...)``, or of one sample."""
    usual = {"weight": None, "size_average": None, "reduce": None, "reduction": "mean", "label_smoothing": 0.0}
    if any(options[name] != value for name, value in usual.items()) or target.is_floating_point():
        return F.cross_entropy(input, target, **options)
    axis, counted = min(1, input.ndim - 1), target != options["ignore_index"]
    chosen = input.log_softmax(axis).gather(axis, target.where(counted, 0).unsqueeze(axis)).squeeze(axis)
    mean: Tensor = -chosen.where(counted, 0).sum() / counted.sum()
    return mean


@contextmanager
def _differentiable() -> Iterator[None]:
    """Disable the fast path of ``nn.TransformerEncoderLayer``, which has no derivative and is taken under ``vmap``."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _count(argument: Values) -> int:
    return len(argument) if isinstance(argument, Tensor) else len(next(iter(argument.values())))


def _at(argument: Values, i: int) -> Any:
    return argument[i] if isinstance(argument, Tensor) else {name: tensor[i] for name, tensor in argument.items()}


def _stacked(results: list[Any]) -> Any:
    if isinstance(results[0], Tensor):
        return torch.stack(results)
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}
