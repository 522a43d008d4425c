"""Images to attack without a data set: crops of the two photographs that scikit-learn ships, and its digits."""

from __future__ import annotations

from functools import cache
from importlib.metadata import distribution

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

CONTRAST = 0.02
"""Smallest mean squared difference of a crop from its mean colour; below it, a flat image would count as a recovery."""


def default_images(n: int, seed: int = 0, side: int = 32, reduce: int = 4) -> tuple[Tensor, Tensor]:
    """``n`` distinct crops ``(n, 3, side, side)`` in [0, 1] and labels ``(n,)`` drawn uniformly; the same for the same seed.

    The photographs (a temple and a flower, 640x427) are scaled down by ``reduce``, so that a crop shows more. Crops come from
    both in turn, at different places with enough contrast (:data:`CONTRAST`).

    Raises:
        ValueError: there are not that many places.
    """
    generator = torch.Generator().manual_seed(seed)
    photographs = [F.avg_pool2d(photograph[None] / 255, reduce)[0] for photograph in sample_photographs()]
    places = [_places(photograph, side) for photograph in photographs]
    most = 2 * min(len(some) for some in places)
    if not 0 < n <= most:
        raise ValueError(f"the two photographs have 1 to {most} places for a crop, not {n}")
    orders = [torch.randperm(len(some), generator=generator) for some in places]
    crops = []
    for i in range(n):
        row, column = places[i % 2][orders[i % 2][i // 2]].tolist()
        crops.append(photographs[i % 2][:, row : row + side, column : column + side])
    return torch.stack(crops), torch.randint(10, (n,), generator=generator)


def sample_photographs() -> list[Tensor]:
    """The photographs ``(3, 427, 640)`` of sklearn.datasets.load_sample_images, whose import takes seconds, in [0, 255]."""
    files = [distribution("scikit-learn").locate_file(f"sklearn/datasets/images/{name}.jpg") for name in ("china", "flower")]
    return [torch.from_numpy(np.array(Image.open(str(file)))).permute(2, 0, 1).float() for file in files]


def digits(seed: int, side: int = 8) -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 digits ``(n, 1, side, side)`` in [0, 1] and labels ``(n,)`` in an order drawn by ``seed``; scaled from
    8x8 pixels."""
    table = _digits()
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    images, labels = table[order, :-1].view(-1, 1, 8, 8) / 16, table[order, -1].long()
    return images if side == 8 else F.interpolate(images, (side, side), mode="bilinear", align_corners=False), labels


@cache
def _digits() -> Tensor:
    """A row of 64 pixels and the label for each digit."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    return torch.from_numpy(np.loadtxt(str(file), delimiter=",", dtype=np.float32))


def _places(photograph: Tensor, side: int) -> Tensor:
    """Upper left corners ``(m, 2)`` of the crops of ``(3, H, W)`` that have contrast."""
    mean, square = (F.avg_pool2d(values[None], side, stride=1)[0] for values in (photograph, photograph.square()))
    return ((square - mean.square()).mean(0) >= CONTRAST).nonzero()
