"""Augmentations of kornia for whole batches of normalised images on their device, with our own random generator.

lightly's and torchvision's transforms process one PIL image at a time, which would slow down training on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

Change = Callable[[Tensor, torch.Generator], Tensor]


def by_kornia(mean: Sequence[float], std: Sequence[float], transforms: Callable[[tuple[int, ...]], nn.Module]) -> Change:
    """An augmentation by kornia: (images ``(B, C, H, W)``, generator) -> a new tensor, with draws for each sample.

    Args:
        mean, std: of each channel on the [0, 1] scale; input and output are normalised by them.
        transforms: shape ``(C, H, W)`` -> the transform of images in [0, 1].
    """

    def changed(images: Tensor, generator: torch.Generator) -> Tensor:
        centre, scale = (torch.tensor(values).to(images).view(1, -1, 1, 1) for values in (mean, std))
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # kornia draws from torch's global CPU generator
            torch.default_generator.manual_seed(seed)
            views: Tensor = transforms(tuple(images.shape[1:]))((images * scale + centre).clamp(0, 1))
        return (views - centre) / scale

    return changed


@cache
def _photograph(shape: tuple[int, ...]) -> nn.Module:
    from kornia import augmentation

    colour = shape[0] == 3
    return nn.Sequential(
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.ColorJitter(0.2, 0.2, 0.2 if colour else 0.0, 0.1 if colour else 0.0, p=1.0),
        augmentation.RandomRotation(10.0, p=1.0),
    )


def flip_jitter_rotate(mean: Sequence[float], std: Sequence[float]) -> Change:
    """SimProx's augmentation of its photographs: a flip (one half), jitter of brightness, contrast and saturation by 0.2
    and of hue by 0.1, and a rotation by up to 10 degrees."""
    return by_kornia(mean, std, _photograph)
