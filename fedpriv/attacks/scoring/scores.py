"""Scores of reconstructed images ``raw`` against the ``true`` ones, both ``(n, C, H, W)``; ``raw`` is clipped to [0, 1] first."""

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
"""Mean squared errors below which an image counts as recovered. The first, which is the loosest, is that of verdicts. A grey
image scores about 0.03 to 0.09."""

RECOVERED = THRESHOLDS[0]
"""The threshold of controls, tables and verdicts."""

Threshold = TypeVar("Threshold")


def mse(raw: Tensor, true: Tensor) -> Tensor:
    """Mean squared error per image ``(n,)``."""
    return (_clipped(raw) - true).square().flatten(1).mean(1)


def missing(raw: Tensor) -> Tensor:
    """Which images the attack did not find ``(n,)``: all their pixels are NaN."""
    return raw.isnan().flatten(1).all(1)


def errors(raw: Tensor, true: Tensor) -> Tensor:
    """:func:`mse`, but infinite for images that were not found, whose grey is no recovery."""
    return mse(raw, true).masked_fill(missing(raw), torch.inf)


def psnr(raw: Tensor, true: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB ``(n,)``, peak 1; infinite where the images are equal."""
    return -10 * mse(raw, true).log10()


def ssim(raw: Tensor, true: Tensor) -> Tensor:
    """Structural similarity per image ``(n,)``: mean over channels and places of the Gaussian window within the image.

    Wang, Bovik, Sheikh & Simoncelli 2004: 11x11 window, sigma 1.5, K1 = 0.01, K2 = 0.03, here per channel in colour. In images
    smaller than the window, the window is as large as they allow.
    """
    raw, channels = _clipped(raw).double(), raw.shape[1]
    true = true.double()
    window = min(11, *(side - 1 + side % 2 for side in raw.shape[2:]))
    line = torch.exp(-((torch.arange(window) - window // 2).double() ** 2) / (2 * 1.5**2))
    kernel = torch.outer(line, line).div(line.sum() ** 2).expand(channels, 1, -1, -1)

    def blur(images: Tensor) -> Tensor:
        return F.conv2d(images, kernel, groups=channels)

    a, b = blur(raw), blur(true)
    variance_a, variance_b, covariance = blur(raw**2) - a**2, blur(true**2) - b**2, blur(raw * true) - a * b
    c1, c2 = 0.01**2, 0.03**2
    similarity = (2 * a * b + c1) * (2 * covariance + c2) / ((a**2 + b**2 + c1) * (variance_a + variance_b + c2))
    return similarity.flatten(1).mean(1)


@dataclass(frozen=True)
class Rate:
    """A number of successes among ``n``, with the 95 % Wilson interval of their share."""

    successes: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share of successes."""
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
    """The number of images for each threshold."""
    return {limit: rate.successes for limit, rate in rates.items()}


def threshold_above(recovered: Mapping[Threshold, int], baseline: Mapping[Threshold, int]) -> Threshold | None:
    """The loosest threshold at which more images were recovered than by the baseline, such as copies of public images.

    Images of one kind can be so alike that copies of public images recover many at a loose threshold. At a strict threshold they
    recover none.

    Args:
        recovered: number of images by threshold, the loosest first.
        baseline: the same for the baseline; thresholds that it lacks are left out.
    """
    return next((limit for limit, count in recovered.items() if count > baseline.get(limit, count)), None)


@dataclass(frozen=True)
class Scores:
    """Scores of ``n`` images.

    Attributes:
        recovered: how many images lie below each threshold of the mean squared error; images that were not found do not.
        labels: how many labels are right; ``None`` where the attack guesses none.
        lpips, feature_distance: ``(n,)``; ``None`` where they cannot be computed, and ``..._missing`` says why.
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


def right_labels(guessed: Tensor | None, labels: Tensor | None) -> Rate | None:
    """How many guessed labels ``(n,)`` are right; ``None``: there are no guesses, or no labels."""
    if guessed is None or labels is None or not bool((guessed >= 0).any()):
        return None
    return wilson(int((guessed == labels).sum()), len(labels))


def score(raw: Tensor, true: Tensor, guessed: Tensor | None = None, labels: Tensor | None = None) -> Scores:
    """All scores; images of one message must first be put in order (:func:`match`)."""
    perceived = (*_where_possible(lpips, raw, true), *_where_possible(feature_distance, raw, true))
    rates = under(errors(raw, true)), right_labels(guessed, labels)
    return Scores(mse(raw, true), psnr(raw, true), ssim(raw, true), *rates, *perceived)


def _where_possible(
    distance: Callable[[Tensor, Tensor], Tensor], raw: Tensor, true: Tensor
) -> tuple[Tensor, None] | tuple[None, str]:
    """A perceptual distance ``(n,)`` and ``None``, or ``None`` and what is missing for it."""
    try:
        return distance(_clipped(raw), true), None
    except Missing as reason:
        return None, str(reason)


def match(raw: Tensor, true: Tensor) -> Tensor:
    """Match the images of one message, whose order a gradient does not determine: the index in ``raw`` for each of ``true``
    ``(n,)``.

    The assignment has as many images as possible below the largest of :data:`THRESHOLDS`, then as many as possible below the
    next, and then the least sum of errors. The sum alone would trade an exact hit for less error among lost images.

    Args:
        true: ``(n, C, H, W)``, or with views ``(n, V, C, H, W)`` of which the nearest counts.
    """
    views = true if true.ndim > raw.ndim else true[:, None]
    rows, pairs = _clipped(raw).flatten(1)[None], None
    for view in views.unbind(1):
        error = (rows - view.flatten(1)[:, None]).square().mean(2)
        pairs = error if pairs is None else torch.minimum(pairs, error)
    assert pairs is not None
    cost = pairs.double() / len(pairs)
    weight = 2.0  # one miss weighs more than all that is less important: errors are at most 1
    for threshold in reversed(THRESHOLDS):
        cost += weight * ((pairs >= threshold) | missing(raw))
        weight *= 2 * len(pairs)
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1])


def closest(raw: Tensor, views: Tensor) -> Tensor:
    """The nearest of each image's views ``(n, V, C, H, W)`` to its reconstruction ``(n, C, H, W)``."""
    error = torch.stack([mse(raw, view) for view in views.unbind(1)], 1)
    return views[torch.arange(len(views)), error.argmin(1)]


def match_batches(raw: Tensor, true: Tensor, size: int) -> Tensor:
    """:func:`match` within each ``size`` consecutive images: indices in ``raw`` ``(n,)``."""
    batches = zip(torch.split(raw, size), torch.split(true, size), strict=True)
    return torch.cat([match(m, t) + i * size for i, (m, t) in enumerate(batches)])


def _clipped(images: Tensor) -> Tensor:
    return images.nan_to_num(nan=0.5).clamp(0, 1)
