"""How far the gradient of a guess is from the one that was seen. Gradients are tensors by parameter name; a result is ``()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

Gradient = Mapping[str, Tensor]
Distance = Callable[[Gradient, Gradient], Tensor]
"""(of the guess, seen) -> how far."""

LEAST_SHARE = 1e-12
"""A layer's squared norm counts as at least this share of the whole: one that is zero has no scale of its own."""


def squared(guess: Gradient, seen: Gradient) -> Tensor:
    """Sum of squared differences, as DLG and iDLG have it."""
    return sum_of((guess[name] - seen[name]).square().sum() for name in seen)


def relative(guess: Gradient, seen: Gradient) -> Tensor:
    """:func:`squared` as a share of the squared norm of what was seen: 1 for a guess of zero."""
    return squared(guess, seen) / sum_of(tensor.square().sum() for tensor in seen.values()).clamp_min(1e-30)


def per_layer(guess: Gradient, seen: Gradient) -> Tensor:
    """Mean over the tensors of squared difference over squared norm: no layer drowns another. 1 for a guess of zero."""
    norms = {name: tensor.square().sum() for name, tensor in seen.items()}
    least = LEAST_SHARE * sum_of(norms.values())
    return sum_of((guess[name] - seen[name]).square().sum() / torch.maximum(norm, least) for name, norm in norms.items()) / len(
        seen
    )


def cosine(guess: Gradient, seen: Gradient) -> Tensor:
    """One minus the cosine of the whole gradients (Geiping et al. 2020, equation 4)."""
    product = sum_of((guess[name] * seen[name]).sum() for name in seen)
    lengths = sum_of(guess[name].square().sum() for name in seen) * sum_of(tensor.square().sum() for tensor in seen.values())
    return 1 - product / lengths.clamp_min(1e-30).sqrt()


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors ``()``."""
    return torch.stack(list(parts)).sum()
