"""Distances between the gradient of a guess and the observed one, which may be clipped, pruned or noisy.

Gradients are tensors by parameter name; a distance is a scalar ``()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.attacks.gradients.variables import smooth_variation

Gradient = Mapping[str, Tensor]

LEAST_SHARE = 1e-12
"""Lower limit of a layer's squared norm as a share of the whole gradient's, since a zero layer has no scale."""

NEIGHBOURS = 0.07
"""Mean absolute difference of neighbouring pixels of a small photograph, in [0, 1]."""


@dataclass(frozen=True)
class ObservedGradient:
    """The gradient that the attacker observed.

    Attributes:
        tensors: by name; zero where an entry was not sent.
        rescaled: whether its norm is unknown (clipping, unknown schedule). Guesses are then scaled to its norm.
        kept: masks by name, 1 where an entry was sent; only these are compared. A tensor without a mask was sent whole.
        variance: expected squared error of an entry ``()``, by name; empty if the gradient is exact.
    """

    tensors: Gradient
    rescaled: bool = False
    kept: Gradient = field(default_factory=dict)
    variance: Gradient = field(default_factory=dict)


Distance = Callable[[Gradient, ObservedGradient], Tensor]
"""(gradient of the guess, observed one) -> distance."""


def squared(guess: Gradient, observed: ObservedGradient) -> Tensor:
    """Sum of squared differences, the loss of DLG and iDLG."""
    comparable_guess = comparable(guess, observed)
    return sum_of((comparable_guess[name] - there).square().sum() for name, there in observed.tensors.items())


def relative(guess: Gradient, observed: ObservedGradient) -> Tensor:
    """:func:`squared` over the observed gradient's squared norm: 1 for a guess of zero."""
    return squared(guess, observed) / sum_of(tensor.square().sum() for tensor in observed.tensors.values()).clamp_min(1e-30)


def standardised(guess: Gradient, observed: ObservedGradient) -> Tensor:
    """:func:`relative` with every tensor in units of its expected error.

    Up to a factor, this is the negative log-likelihood of Gaussian errors; :func:`negative_log_prior` has the same factor.
    """
    comparable_guess = comparable(guess, observed)
    missed = (
        (comparable_guess[name] - there).square().sum() / observed.variance[name] for name, there in observed.tensors.items()
    )
    return sum_of(missed) / _square(observed.tensors, observed).clamp_min(1e-30)


def per_layer(guess: Gradient, observed: ObservedGradient) -> Tensor:
    """Mean over the tensors of squared difference over squared norm: every layer counts the same, 1 for a guess of zero."""
    comparable_guess = comparable(guess, observed)
    norms = {name: tensor.square().sum() for name, tensor in observed.tensors.items()}
    least = LEAST_SHARE * sum_of(norms.values())
    shares = (
        (comparable_guess[name] - observed.tensors[name]).square().sum() / torch.maximum(norm, least)
        for name, norm in norms.items()
    )
    return sum_of(shares) / len(norms)


def cosine(guess: Gradient, observed: ObservedGradient) -> Tensor:
    """One minus the cosine similarity of the whole gradients (Geiping et al. 2020, equation 4)."""
    comparable_guess, there = comparable(guess, observed), observed.tensors
    product = sum_of((comparable_guess[name] * there[name]).sum() for name in there)
    lengths = sum_of(comparable_guess[name].square().sum() for name in there) * sum_of(
        tensor.square().sum() for tensor in there.values()
    )
    return 1 - product / lengths.clamp_min(1e-30).sqrt()


def comparable(guess: Gradient, observed: ObservedGradient) -> dict[str, Tensor]:
    """The guess with the entries that were not sent set to zero, scaled to the observed norm if the gradient was rescaled."""
    comparable_guess = {
        name: guess[name] * observed.kept[name] if name in observed.kept else guess[name] for name in observed.tensors
    }
    if not observed.rescaled:
        return comparable_guess
    # Not the least-squares factor: it is negative for half of the starts, which then move away from the solution.
    factor = (_square(observed.tensors, observed) / _square(comparable_guess, observed).clamp_min(1e-30)).sqrt()
    return {name: factor * tensor for name, tensor in comparable_guess.items()}


def matching_loss(exact: Distance, guess: Gradient, images: Tensor | None, observed: ObservedGradient) -> Tensor:
    """The loss of gradient matching: the distance ``exact`` if the gradient is exact, else the images' negative log posterior.

    Args:
        guess: gradient of ``images``, or of other samples.
        images: ``(..., C, H, W)`` in [0, 1]; ``None``: the samples have no prior, and the loss is the negative log-likelihood.
    """
    if not observed.variance:
        return exact(guess, observed)
    likelihood = standardised(guess, observed)
    return likelihood if images is None else likelihood + negative_log_prior(images, observed)


def negative_log_prior(images: Tensor, observed: ObservedGradient) -> Tensor:
    """Negative log prior of images ``(..., C, H, W)`` in [0, 1], in the units of :func:`standardised`.

    With Gaussian errors of variance ``v`` and Laplace-distributed differences of neighbouring pixels, the maximum a posteriori
    image minimises ``sum residual^2 / (2 v) + sum |differences| / NEIGHBOURS``: total variation (Rudin, Osher & Fatemi 1992).
    """
    weight = 2 / _square(observed.tensors, observed).clamp_min(1e-30) * images.numel() / NEIGHBOURS
    return weight * smooth_variation(images)


def _square(gradient: Gradient, observed: ObservedGradient) -> Tensor:
    """Squared norm, in units of the expected error where there is one."""
    squares = {name: tensor.square().sum() for name, tensor in gradient.items()}
    return sum_of(square / observed.variance[name] if observed.variance else square for name, square in squares.items())


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors ``()``."""
    return torch.stack(list(parts)).sum()
