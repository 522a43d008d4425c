"""The unknowns of a reconstruction, flattened to one vector ``(p,)``, and the images or rows that they parametrise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.columns import CategoryColumn, RowEncoding

CERTAIN = 1e-6
"""Smallest distance of a number from the ends of its range, as a share of the range."""
SURE = 50.0
"""The unknown of a category's level at which its softmax is 1 up to rounding."""

SMOOTH = 1e-2
"""Difference of neighbouring pixels below which their variation is about a square."""


class Layout:
    """Names and shapes of the unknowns, concatenated to a vector of ``size`` entries."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.lengths = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self.lengths)

    def unpack(self, row: Tensor) -> dict[str, Tensor]:
        """``(..., p)`` -> tensors by name ``(..., *shape)``; works within ``vmap``."""
        parts = torch.split(row, self.lengths, dim=-1)
        return {
            name: part.reshape(*row.shape[:-1], *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Tensors ``(n, *shape)`` -> ``(n, p)``."""
        return torch.cat([parts[name].flatten(1) for name in self.shapes], 1)


@dataclass(frozen=True)
class Pixels:
    """The map from an unknown to an image.

    Attributes:
        mean, std: of the net's normalisation ``(C, 1, 1)``.
        bounded: the image is the sigmoid of the unknown, which keeps it in [0, 1]. Otherwise, as in the published attacks, the
            unknown is the net's input ``(image - mean) / std``.
    """

    mean: Tensor
    std: Tensor
    bounded: bool

    def image(self, unknown: Tensor) -> Tensor:
        """The image ``(..., C, H, W)``; without the sigmoid its pixels may lie outside [0, 1]."""
        return unknown.sigmoid() if self.bounded else unknown * self.std + self.mean

    def input(self, unknown: Tensor) -> Tensor:
        """The net's input ``(..., C, H, W)``."""
        return (unknown.sigmoid() - self.mean) / self.std if self.bounded else unknown


@dataclass(frozen=True, eq=False)
class Cells:
    """The map from an unknown to rows of a table (Vero et al., TabLeak, ICML 2023).

    Numbers are descended as they are, or by a sigmoid over their range where it is known; categories by the softmax over their
    entries, and gaps by a sigmoid.

    Attributes:
        padded: indices of the entries of each category, filled up with F to the largest number ``(categories, most)``.
        places: index of each entry in ``padded`` flattened; 0 for those of no category ``(F,)``.
        is_category, is_gap, is_bounded: masks of the entries ``(F,)``.
        missing: index of the entry that says whether an entry's number is missing; its own index where there is none ``(F,)``.
        low, spread: the lower end and the length of the range of each entry ``(F,)``; 0 and 1 for gaps.
    """

    padded: Tensor
    places: Tensor
    is_category: Tensor
    is_gap: Tensor
    is_bounded: Tensor
    missing: Tensor
    low: Tensor
    spread: Tensor

    @classmethod
    def of(cls, encoding: RowEncoding, dtype: torch.dtype = torch.float32) -> Cells:
        """The map to rows with these columns."""
        width, most = encoding.width, max((at.stop - at.start for at in encoding.categories), default=1)
        padded = torch.full((len(encoding.categories), most), width)
        places, missing = torch.zeros(width, dtype=torch.long), torch.arange(width)
        is_category, is_gap, is_bounded = (torch.zeros(width, dtype=torch.bool) for _ in range(3))
        low, spread = torch.zeros(width, dtype=dtype), torch.ones(width, dtype=dtype)
        categories = 0
        for column, at in zip(encoding.columns, encoding.entries, strict=True):
            if isinstance(column, CategoryColumn):
                padded[categories, : column.width] = torch.arange(at.start, at.stop)
                places[at] = torch.arange(column.width) + categories * most
                is_category[at], categories = True, categories + 1
                continue
            if column.gaps:
                is_gap[at.start + 1], missing[at.start] = True, at.start + 1
            if column.low is not None and column.high is not None:
                is_bounded[at.start] = True
                low[at.start], spread[at.start] = (column.low - column.mean) / column.std, (column.high - column.low) / column.std
        return cls(padded, places, is_category, is_gap, is_bounded | is_gap, missing, low, spread)

    def image(self, unknown: Tensor) -> Tensor:
        """The rows ``(..., F)``."""
        rows = torch.where(self.is_bounded, unknown.sigmoid() * self.spread + self.low, unknown)
        has_gap = self.missing != torch.arange(len(self.missing))
        if bool(self.is_gap.any()):
            rows = rows * torch.where(has_gap, 1 - rows[..., self.missing], 1.0)
        if len(self.padded):
            beyond = torch.cat([unknown, torch.full_like(unknown[..., :1], -torch.inf)], -1)
            shares = beyond[..., self.padded].softmax(-1).flatten(-2)[..., self.places]
            rows = torch.where(self.is_category, shares, rows)
        return rows

    def input(self, unknown: Tensor) -> Tensor:
        """The net's input ``(..., F)``, the rows themselves."""
        return self.image(unknown)

    def unknown(self, rows: Tensor) -> Tensor:
        """Unknowns ``(..., F)`` of rows whose categories are one-hot and whose gaps are 0 or 1, as they are encoded."""
        share = ((rows - self.low) / self.spread).clamp(CERTAIN, 1 - CERTAIN)
        bounded = torch.where(self.is_gap, SURE * (2 * rows - 1), share.logit())
        return torch.where(self.is_category, SURE * rows, torch.where(self.is_bounded, bounded, rows))


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels ``(..., C, H, W) -> ()`` (Geiping et al. 2020)."""
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return across + down


def smooth_variation(images: Tensor) -> Tensor:
    """:func:`total_variation`, made smooth at zero for L-BFGS ``(..., C, H, W) -> ()``."""
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    lengths = [(difference.square() + SMOOTH**2).sqrt().mean() for difference in (across, down)]
    return lengths[0] + lengths[1]
