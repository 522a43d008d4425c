"""Membership, and the mean colour of a client's images, from the running statistics of its BatchNorm layers.

For each channel of each BatchNorm layer, a message shows two means over the batch
(:mod:`fedpriv.attacks.gradients.batch_statistics`): of each sample's mean input over positions, and of its mean squared input.
The same two statistics of a candidate are its *values*. With the values of all candidates this is a linear system for each
candidate's share of the batch. Shares are not negative, and most are zero, so that non-negative least squares (Lawson & Hanson
1974) finds more shares than there are equations. The attack needs no label, no shadow model and no layer behind the last
BatchNorm. It is a tracing attack on published means (Homer et al., PLoS Genetics 2008) that solves for all candidates at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.batch_statistics import LayerStatistics, SampleStatistics, layer_statistics, sample_statistics
from fedpriv.attacks.gradients.linear import normalise_images
from fedpriv.attacks.inference.membership import Array

FLOORS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Standard deviations of an equation's unknown error that are tried in turn, as shares of the deviation over the candidates. The
first is that of rounding; members that are not among the candidates are an error, too."""
TOO_OFTEN = 1.5
"""If a sample seems this many times as often in the batches as the schedule allows, the next larger error is tried."""
PATH_ERROR = 0.3
"""Standard deviation of an equation's error where the client's weights moved between batches, as a share of how far that moves a
candidate's value."""
_AFFINE = 1e-4
"""Relative rounding of an affine function's values."""
_CONSTANT = 1e-9
"""Values whose relative deviation over the candidates is below this do not distinguish them."""


def shares_of_batches(observation: Observation, candidates: Callable[[], Iterator[Any]]) -> Array:
    """How many times each candidate seems to be among the client's samples ``(n,)``, at least 0; higher for likelier members.

    With ``a_ij`` the value of candidate j in equation i, ``t_i`` the value of the batches, ``n`` candidates and ``N`` samples
    behind the message, it is

        argmin over u >= 0 of  sum_i (sum_j a_ij u_j / N - t_i)^2 / s_i^2 + (n / N) sum_j u_j^2

    on centred values, with s_i the expected error (:data:`FLOORS`). The second term is a Gaussian prior under which N samples are
    expected to be members; it decides between solutions that fit equally well. Not all of the client's samples need be
    candidates.

    Args:
        candidates: inputs of the net, normalised, in consecutive parts; called once for each set of weights of the client.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.gradients.batch_statistics.layer_statistics`; or the inputs of none of these
            layers are known.
    """
    seen = layer_statistics(observation)
    own = sample_statistics(observation, seen, candidates)
    if not own:
        raise Inapplicable("layers before each BatchNorm whose running statistics were sent are not known")
    assert observation.passes is not None
    samples = observation.num_examples or observation.passes.samples
    equations, doubt = list[tuple[Array, Array, Array, Array]](), 0.0
    for name, statistics in own.items():
        equations += _equations(seen[name], statistics, observation.passes.samples, samples, doubt)
        doubt = max(doubt, _doubt(seen[name]))
    numbers, sums, errors, drifts = (np.concatenate([row[i] for row in equations]) for i in range(4))
    middle, spread = numbers.mean(1), numbers.std(1)
    tells = (spread > _CONSTANT * np.abs(middle)) & (spread > 0) & np.isfinite(errors)
    numbers, sums, errors, drifts = numbers[tells], sums[tells], errors[tells], drifts[tells]
    middle, spread = middle[tells], spread[tells]
    count, epoch = numbers.shape[1], math.ceil(samples / observation.passes.samples)
    most = epoch * sum(next(iter(seen.values())).weights[::-epoch])  # of a sample in the last batch of every epoch
    centred, target = numbers - middle[:, None], sums - middle
    shares: Array = np.zeros(count)
    for floor in FLOORS:
        deviation = np.sqrt((floor * spread) ** 2 + errors + (PATH_ERROR * drifts) ** 2)
        system = np.concatenate([centred / (samples * deviation[:, None]), np.sqrt(count / samples) * np.eye(count)])
        shares = nnls(system, np.concatenate([target / deviation, np.zeros(count)]), maxiter=50 * count)[0]
        if shares.max(initial=0.0) <= TOO_OFTEN * most:
            break
    return shares


def _doubt(seen: LayerStatistics) -> float:
    """The error variance of a layer's output from errors of its statistics, relative to the output's variance; infinite where
    statistics were not sent."""
    scale = seen.variance.clamp_min(_CONSTANT)
    return float((seen.mean_error / scale + seen.variance_error / (4 * scale.square())).mean())


def _equations(
    seen: LayerStatistics, own: SampleStatistics, batch: int, samples: int, doubt: float
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """The equations for the means of a layer's channels, and for their mean squares.

    Each has the values of the candidates ``(C, n)``, the weighted mean of the values over the batches ``(C,)``, the variance of
    its error ``(C,)``, and how far the client's path moves the values ``(C,)``. The mean square of a batch is its biased variance
    plus the square of its mean. Of several batches only the mean of the means is known; the mean of their squares exceeds its
    square by the variance between batches, which is estimated from the candidates.

    Args:
        batch, samples: number of samples in a batch, and behind the message.
        doubt: relative error variance of the outputs of the layers before.
    """
    values = batch * own.positions
    biased = (values - 1) / values
    scattered = 1 - sum(weight**2 for weight in seen.weights)
    left = max(0, samples - batch) / max(1, samples - 1)  # batches are drawn from the samples without replacement
    between = own.means.var(0, correction=0) * scattered * left / batch
    square = biased * seen.variance + seen.mean.square() + between
    passed_on = doubt * seen.variance.clamp_min(_CONSTANT)
    error = biased**2 * seen.variance_error + 4 * seen.mean.square() * seen.mean_error + between.square()
    error = error + 4 * square.clamp_min(_CONSTANT) * passed_on
    for numbers, sums, errors, drift in (
        (own.means, seen.mean, seen.mean_error + passed_on, own.drift_means),
        (own.squares, square, error, own.drift_squares),
    ):
        yield numbers.T.numpy(), sums.numpy(), errors.numpy(), drift.square().mean(0).sqrt().numpy()


def mean_colour(observation: Observation) -> Tensor:
    """The mean colour ``(C,)`` of the client's images, in [0, 1]: over its samples and their pixels.

    If only a convolution precedes the first BatchNorm layer, the batch's mean of a channel is an affine function of the mean
    colour, except for the padding at the border. The colour solves these equations by least squares.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.gradients.batch_statistics.layer_statistics`; or the first layer's input is no
            affine function of the image, or has fewer channels.
    """
    seen = layer_statistics(observation)
    channels, like = observation.input_shape[0], next(iter(observation.buffers.values()))
    if len(observation.input_shape) != 3:
        raise Inapplicable("the client's samples are no images")
    flat = torch.cat([torch.zeros(1, channels), torch.eye(channels), torch.full((1, channels), 0.5)])
    noise = torch.rand(2, *observation.input_shape, generator=torch.Generator().manual_seed(0))
    images = torch.cat([flat[..., None, None].expand(-1, *observation.input_shape), noise, noise.mean(0, keepdim=True)])
    inputs = normalise_images(observation, images.to(like))
    own = sample_statistics(observation, seen, lambda: iter([inputs]))
    if not own:
        raise Inapplicable("layers before the first BatchNorm whose running statistics were sent are not known")
    name, first = next(iter(own.items()))
    at = first.means - first.means[0]
    sums = torch.stack([at[1 : 1 + channels].sum(0) / 2 - at[1 + channels], at[-3:-1].mean(0) - at[-1]])
    if float(sums.abs().amax()) > _AFFINE * float(at.abs().amax()):
        raise Inapplicable(f"{name}, the first BatchNorm whose statistics were sent, is not fed an affine function of the image")
    sent = seen[name].mean_error.isfinite()
    by_colour, off = at[1 : 1 + channels].T[sent], (seen[name].mean - first.means[0])[sent]
    if not len(by_colour) or int(torch.linalg.matrix_rank(by_colour)) < channels:
        raise Inapplicable(f"{name} has fewer independent channels than the image")
    colour: Tensor = torch.linalg.lstsq(by_colour, off[:, None]).solution[:, 0]
    return colour
