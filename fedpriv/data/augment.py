"""Augmentation of a batch where it lies: every sample its own draw, no loop, no copy to the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

PADDING = 4

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""(images ``(B, C, H, W)``, generator) -> the images, each sample changed by a draw of its own."""


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Pad by 4 zeros, crop back at random, flip left to right with probability one half; each sample draws for itself.

    Args:
        images: ``(B, C, H, W)`` float, normalised; the padding is zero *after* normalisation, the mean colour.
        generator: decides the draws, so the same generator state gives the same batch. Draws are made on its own device.

    Returns:
        A new tensor of the same shape on the same device.
    """
    size, _, height, width = images.shape
    shift = torch.randint(2 * PADDING + 1, (2, size, 1), generator=generator, device=generator.device).to(images.device)
    flip = torch.rand(size, 1, generator=generator, device=generator.device).to(images.device) < 0.5
    rows = shift[0] + torch.arange(height, device=images.device)
    columns = shift[1] + torch.arange(width, device=images.device)
    columns = torch.where(flip, columns.flip(1), columns)
    padded = functional.pad(images, (PADDING,) * 4)
    sample = torch.arange(size, device=images.device)[:, None, None]
    # Advanced indices around a slice come out first: (B, H, W, C).
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def augmentation(name: str) -> Augment | None:
    """What ``data.augment`` names."""
    return {"none": None, "crop_flip": crop_flip}[name]
