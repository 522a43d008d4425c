"""Images to attack where no data set is at hand: crops of the two photographs that scikit-learn ships."""

from __future__ import annotations

import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F


def default_images(n: int, seed: int = 0, classes: int = 10, side: int = 32, reduce: int = 4) -> tuple[Tensor, Tensor]:
    """``n`` distinct crops ``(n, 3, side, side)`` in [0, 1] and labels ``(n,)`` drawn uniformly; the same for the same seed.

    The photographs (a temple and a flower, 640x427) are first made ``reduce`` times smaller, so that a crop has something in it,
    then cut in turn at places without repetition.

    Raises:
        ValueError: there are not that many places.
    """
    draw = torch.Generator().manual_seed(seed)
    photographs = [
        F.avg_pool2d(torch.tensor(photograph).permute(2, 0, 1).float()[None] / 255, reduce)[0]
        for photograph in load_sample_images().images
    ]
    places = [(p.shape[1] - side + 1, p.shape[2] - side + 1) for p in photographs]
    most = 2 * min(rows * columns for rows, columns in places)
    if not 0 < n <= most:
        raise ValueError(f"the two photographs have 1 to {most} places for a crop, not {n}")
    orders = [torch.randperm(rows * columns, generator=draw).tolist() for rows, columns in places]
    crops = []
    for i in range(n):
        photograph, (_, columns) = photographs[i % 2], places[i % 2]
        row, column = divmod(orders[i % 2][i // 2], columns)
        crops.append(photograph[:, row : row + side, column : column + side])
    return torch.stack(crops), torch.randint(classes, (n,), generator=draw)
