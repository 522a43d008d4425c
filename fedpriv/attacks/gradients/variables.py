"""The unknowns of a reconstruction, flattened to one vector ``(p,)``, and the images that they parametrise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


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


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels ``(..., C, H, W) -> ()`` (Geiping et al. 2020)."""
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return across + down


def smooth_variation(images: Tensor, smooth: float = 1e-2) -> Tensor:
    """:func:`total_variation`, made smooth at zero for L-BFGS ``(..., C, H, W) -> ()``."""
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    lengths = [(difference.square() + smooth**2).sqrt().mean() for difference in (across, down)]
    return lengths[0] + lengths[1]
