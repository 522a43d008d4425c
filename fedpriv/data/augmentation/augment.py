"""Augmentation of a batch on its device: every sample has its own random draw; no loop, no copy to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.data.augmentation.by_kornia import flip_jitter_rotate, simclr_views

PADDING = 4
TURN = 15.0
"""Largest rotation, in degrees."""

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""(images ``(B, C, H, W)``, generator) -> augmented images, with a draw for each sample."""


def crop_flip(images: Tensor, generator: torch.Generator, mode: Literal["constant", "reflect"] = "constant") -> Tensor:
    """Pad by 4, crop back at random, flip left to right with probability one half; with a draw for each sample.

    Args:
        images: ``(B, C, H, W)`` float, normalised.
        generator: its state determines the batch. Draws are made on its device.
        mode: the padding: zeros *after* normalisation, which is the mean colour, or the image mirrored at its edge.

    Returns:
        A new tensor of the same shape on the same device.
    """
    size, _, height, width = images.shape
    shift = torch.randint(2 * PADDING + 1, (2, size, 1), generator=generator, device=generator.device).to(images.device)
    flip = torch.rand(size, 1, generator=generator, device=generator.device).to(images.device) < 0.5
    rows = shift[0] + torch.arange(height, device=images.device)
    columns = shift[1] + torch.arange(width, device=images.device)
    columns = torch.where(flip, columns.flip(1), columns)
    padded = functional.pad(images, (PADDING,) * 4, mode)
    sample = torch.arange(size, device=images.device)[:, None, None]
    # Advanced indices around a slice come out first: (B, H, W, C).
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def turned(images: Tensor, degrees: Tensor) -> Tensor:
    """Images ``(B, C, H, W)`` rotated counter-clockwise about their centres, each by its own angle ``(B,)``.

    With nearest-pixel interpolation and zeros outside, the defaults of torchvision's ``RandomRotation``.
    """
    height, width = images.shape[2:]
    angle = torch.deg2rad(degrees).to(images)
    cos, sin, none = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    # Maps positions in the output to positions in the input, in units of half the width and height.
    rows = [torch.stack([cos, -sin * height / width, none], 1), torch.stack([sin * width / height, cos, none], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def crop_flip_rotate(images: Tensor, generator: torch.Generator) -> Tensor:
    """:func:`crop_flip`, then a rotation by an angle drawn uniformly from -15 to 15 degrees."""
    changed = crop_flip(images, generator)
    drawn = torch.rand(len(images), generator=generator, device=generator.device)
    return turned(changed, (2 * drawn - 1) * TURN)


def augmentation(name: str, mean: Sequence[float] = (), std: Sequence[float] = ()) -> Augment | None:
    """The augmentation that ``data.augment`` names.

    Args:
        mean, std: of the images' normalisation, for augmentations that change colours.
    """
    known: dict[str, Augment | None] = {
        "none": None,
        "crop_flip": crop_flip,
        "reflect_crop_flip": partial(crop_flip, mode="reflect"),
        "crop_flip_rotate": crop_flip_rotate,
        "flip_jitter_rotate": flip_jitter_rotate(mean, std),
        "simclr": simclr_views(mean, std),
        "simclr_sharp": simclr_views(mean, std, blur=False),
    }
    return known[name]
