"""Distances between the gradient of a guess and the observed one, given what the message's transforms did to the latter.

Gradients are tensors by parameter name; a distance is ``()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.attacks.gradients.variables import smooth_variation

Gradient = Mapping[str, Tensor]

LEAST_SHARE = 1e-12
"""A layer's squared norm counts as at least this share of the whole, since one that is zero has no scale."""

NEIGHBOURS = 0.07
"""Mean absolute difference of neighbouring pixels in [0, 1] of a small photograph."""


@dataclass(frozen=True)
class ObservedGradient:
    """A gradient as the attacker has it.

    Attributes:
        tensors: by name; zero where an entry was not sent.
        rescaled: its norm carries no information (clipping, a schedule that is not known): guesses are scaled to the same norm.
        kept: 1 for the entries that were sent, by name; only these are compared. Of a tensor that is not named, all were sent.
        variance: expected error of an entry ``()``, by name: of all tensors, or of none where the gradient is exact.
    """

    tensors: Gradient
    rescaled: bool = False
    kept: Gradient = field(default_factory=dict)
    variance: Gradient = field(default_factory=dict)


Distance = Callable[[Gradient, ObservedGradient], Tensor]
"""(gradient of the guess, observed one) -> distance."""


def squared(guess: Gradient, seen: ObservedGradient) -> Tensor:
    """Sum of squared differences, the loss of DLG and iDLG."""
    made = comparable(guess, seen)
    return sum_of((made[name] - there).square().sum() for name, there in seen.tensors.items())


def relative(guess: Gradient, seen: ObservedGradient) -> Tensor:
    """:func:`squared` as a share of the observed gradient's squared norm: 1 for a guess of zero."""
    return squared(guess, seen) / sum_of(tensor.square().sum() for tensor in seen.tensors.values()).clamp_min(1e-30)


def standardised(guess: Gradient, seen: ObservedGradient) -> Tensor:
    """:func:`relative` with every tensor in units of its expected error.

    Up to a factor the negative logarithm of a Gaussian likelihood; :func:`unlikeliness` is that of a prior.
    """
    made = comparable(guess, seen)
    missed = ((made[name] - there).square().sum() / seen.variance[name] for name, there in seen.tensors.items())
    return sum_of(missed) / _square(seen.tensors, seen).clamp_min(1e-30)


def per_layer(guess: Gradient, seen: ObservedGradient) -> Tensor:
    """Mean over the tensors of squared difference over squared norm, so that every layer counts alike. 1 for a guess of zero."""
    made = comparable(guess, seen)
    norms = {name: tensor.square().sum() for name, tensor in seen.tensors.items()}
    least = LEAST_SHARE * sum_of(norms.values())
    shares = ((made[name] - seen.tensors[name]).square().sum() / torch.maximum(norm, least) for name, norm in norms.items())
    return sum_of(shares) / len(norms)


def cosine(guess: Gradient, seen: ObservedGradient) -> Tensor:
    """One minus the cosine of the whole gradients (Geiping et al. 2020, equation 4)."""
    made, there = comparable(guess, seen), seen.tensors
    product = sum_of((made[name] * there[name]).sum() for name in there)
    lengths = sum_of(made[name].square().sum() for name in there) * sum_of(tensor.square().sum() for tensor in there.values())
    return 1 - product / lengths.clamp_min(1e-30).sqrt()


def comparable(guess: Gradient, seen: ObservedGradient) -> dict[str, Tensor]:
    """The guess on the entries that were sent, scaled to the observed norm where that was clipped."""
    made = {name: guess[name] * seen.kept[name] if name in seen.kept else guess[name] for name in seen.tensors}
    if not seen.rescaled:
        return made
    # Not the factor of least squares: it is negative for half of the starts, which then diverge from the solution.
    factor = (_square(seen.tensors, seen) / _square(made, seen).clamp_min(1e-30)).sqrt()
    return {name: factor * tensor for name, tensor in made.items()}


def matching_loss(exact: Distance, guess: Gradient, images: Tensor, seen: ObservedGradient) -> Tensor:
    """The loss of gradient matching: ``exact`` where the gradient is exact, else the negative log posterior of the images.

    Args:
        guess: gradient of ``images``.
        images: ``(..., C, H, W)`` in [0, 1].
    """
    if not seen.variance:
        return exact(guess, seen)
    return standardised(guess, seen) + unlikeliness(images, seen)


def unlikeliness(images: Tensor, seen: ObservedGradient) -> Tensor:
    """Negative log prior of images ``(..., C, H, W)`` in [0, 1], in the units of :func:`standardised`.

    With Gaussian errors of variance ``v`` and neighbouring pixels that differ by a Laplace variable, the most probable image
    minimises ``sum residual^2 / (2 v) + sum |differences| / NEIGHBOURS``: maximum a posteriori, with total variation as the
    negative logarithm of the prior (Rudin, Osher & Fatemi 1992).
    """
    weight = 2 / _square(seen.tensors, seen).clamp_min(1e-30) * images.numel() / NEIGHBOURS
    return weight * smooth_variation(images)


def _square(gradient: Gradient, seen: ObservedGradient) -> Tensor:
    """Squared norm, in units of the expected error where there is one."""
    squares = {name: tensor.square().sum() for name, tensor in gradient.items()}
    return sum_of(square / seen.variance[name] if seen.variance else square for name, square in squares.items())


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors ``()``."""
    return torch.stack(list(parts)).sum()
