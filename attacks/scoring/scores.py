"""Scores of reconstructed images. Images are ``(n, C, H, W)`` in [0, 1]; reconstructions are clipped before scoring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.scoring.feature_distance import feature_distance
from fedpriv.attacks.scoring.perceptual import Missing, lpips

THRESHOLDS = (1e-2, 1e-3, 1e-4)
"""Mean squared errors below which an image counts as recovered; a grey image scores about 0.03 to 0.09."""

RECOVERED = THRESHOLDS[0]
"""The threshold of controls, tables and verdicts."""

Threshold = TypeVar("Threshold")


def mse(made: Tensor, true: Tensor) -> Tensor:
    """Mean squared error per image ``(n,)``, clipped."""
    return (_clipped(made) - true).square().flatten(1).mean(1)


def missing(made: Tensor) -> Tensor:
    """Whether an image stands for one that the attack did not find ``(n,)``: all of it is NaN."""
    return made.isnan().flatten(1).all(1)


def errors(made: Tensor, true: Tensor) -> Tensor:
    """:func:`mse`, but infinite for what was not found: its grey is no recovery, whatever the image."""
    return mse(made, true).masked_fill(missing(made), torch.inf)


def psnr(made: Tensor, true: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB ``(n,)``, peak 1; infinite where the images are equal."""
    return -10 * mse(made, true).log10()


def ssim(made: Tensor, true: Tensor, window: int = 11, sigma: float = 1.5) -> Tensor:
    """Structural similarity per image ``(n,)``: mean over channels and places of the Gaussian window within the image.

    Wang, Bovik, Sheikh & Simoncelli 2004: 11x11 window, sigma 1.5, K1 = 0.01, K2 = 0.03, here per channel in colour. In images
    smaller than the window, the window is as large as they allow.
    """
    made, channels = _clipped(made).double(), made.shape[1]
    true = true.double()
    window = min(window, *(side - 1 + side % 2 for side in made.shape[2:]))
    line = torch.exp(-((torch.arange(window) - window // 2).double() ** 2) / (2 * sigma**2))
    kernel = torch.outer(line, line).div(line.sum() ** 2).expand(channels, 1, -1, -1)

    def blur(images: Tensor) -> Tensor:
        return F.conv2d(images, kernel, groups=channels)

    a, b = blur(made), blur(true)
    variance_a, variance_b, covariance = blur(made**2) - a**2, blur(true**2) - b**2, blur(made * true) - a * b
    c1, c2 = 0.01**2, 0.03**2
    similarity = (2 * a * b + c1) * (2 * covariance + c2) / ((a**2 + b**2 + c1) * (variance_a + variance_b + c2))
    return similarity.flatten(1).mean(1)


@dataclass(frozen=True)
class Rate:
    """A share of ``n`` with its 95 % Wilson interval."""

    successes: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.successes / self.n


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> Rate:
    """Wilson's score interval (1927); ``z`` is the normal quantile of 95 %.

    Raises:
        ValueError: ``n`` is not positive, or there are more successes than that.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n} is not a rate")
    share, shrink = successes / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / shrink
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / shrink
    return Rate(successes, n, 0.0 if successes == 0 else middle - half, 1.0 if successes == n else middle + half)


def under(errors: Tensor) -> dict[float, Rate]:
    """How many of the errors ``(n,)`` are below each threshold."""
    return {limit: wilson(int((errors < limit).sum()), len(errors)) for limit in THRESHOLDS}


def counts(rates: Mapping[Threshold, Rate]) -> dict[Threshold, int]:
    """Threshold -> number of images."""
    return {limit: rate.successes for limit, rate in rates.items()}


def threshold_above(recovered: Mapping[Threshold, int], copies: Mapping[Threshold, int]) -> Threshold | None:
    """The loosest threshold at which more images were recovered than copies of the nearest public image would count for.

    Images of one kind can be so alike that copies of public ones count for many at a loose threshold. What an attack really
    reads shows at a strict one, where copies count for none.

    Args:
        recovered: threshold -> number of images, the loosest first.
        copies: the same for copies; a threshold that it lacks is left out.
    """
    return next((limit for limit, count in recovered.items() if count > copies.get(limit, count)), None)


@dataclass(frozen=True)
class Scores:
    """Scores of ``n`` images.

    Attributes:
        recovered: by threshold of the mean squared error, how many lie below; none of those that the attack did not find.
        labels: how many labels are right; ``None`` where the attack guesses none.
        lpips, feature_distance: ``(n,)``; ``None`` where it cannot be computed, and ``..._missing`` says why.
    """

    mse: Tensor
    psnr: Tensor
    ssim: Tensor
    recovered: dict[float, Rate]
    labels: Rate | None
    lpips: Tensor | None = None
    lpips_missing: str | None = None
    feature_distance: Tensor | None = None
    feature_distance_missing: str | None = None


def score(made: Tensor, true: Tensor, guessed: Tensor | None = None, labels: Tensor | None = None) -> Scores:
    """All scores; images of a batch must be brought into order by :func:`match` first."""
    right = None
    if guessed is not None and labels is not None and bool((guessed >= 0).any()):
        right = wilson(int((guessed == labels).sum()), len(true))
    perceived = (*_where_possible(lpips, made, true), *_where_possible(feature_distance, made, true))
    return Scores(mse(made, true), psnr(made, true), ssim(made, true), under(errors(made, true)), right, *perceived)


def _where_possible(
    distance: Callable[[Tensor, Tensor], Tensor], made: Tensor, true: Tensor
) -> tuple[Tensor, None] | tuple[None, str]:
    """A perceptual distance, or what is missing for it."""
    try:
        return distance(_clipped(made), true), None
    except Missing as reason:
        return None, str(reason)


def match(made: Tensor, true: Tensor) -> Tensor:
    """For images of one batch, whose order a gradient does not determine: the index in ``made`` for each of ``true`` ``(n,)``.

    The assignment has as many images as possible below the largest of :data:`THRESHOLDS`, among these as many as possible below
    the next, and then the least sum of errors. The sum alone would give an exact hit away for less error among lost images.

    Args:
        true: ``(n, C, H, W)``, or with views ``(n, V, C, H, W)`` of which the one with the least error counts.
    """
    views = true if true.ndim > made.ndim else true[:, None]
    rows, pairs = _clipped(made).flatten(1)[None], None
    for view in views.unbind(1):
        error = (rows - view.flatten(1)[:, None]).square().mean(2)
        pairs = error if pairs is None else torch.minimum(pairs, error)
    assert pairs is not None
    cost = pairs.double() / len(pairs)
    weight = 2.0  # one miss weighs more than all that is less important: errors are at most 1
    for threshold in reversed(THRESHOLDS):
        cost += weight * ((pairs >= threshold) | missing(made))
        weight *= 2 * len(pairs)
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1])


def closest(made: Tensor, views: Tensor) -> Tensor:
    """For each reconstruction ``(n, C, H, W)`` the nearest of its image's views ``(n, V, C, H, W)``."""
    error = torch.stack([mse(made, view) for view in views.unbind(1)], 1)
    return views[torch.arange(len(views)), error.argmin(1)]


def match_batches(made: Tensor, true: Tensor, size: int) -> Tensor:
    """:func:`match` within every consecutive ``size`` images: positions in ``made`` ``(n,)``."""
    batches = zip(torch.split(made, size), torch.split(true, size), strict=True)
    return torch.cat([match(m, t) + i * size for i, (m, t) in enumerate(batches)])


def _clipped(images: Tensor) -> Tensor:
    return images.nan_to_num(nan=0.5).clamp(0, 1)
