"""Augmentations of kornia, a batch at a time where it lies, on normalised images and by draws of our own.

lightly's and torchvision's transforms take one PIL image after another: a round of a ResNet on a GPU would wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

Change = Callable[[Tensor, torch.Generator], Tensor]


def by_kornia(mean: Sequence[float], std: Sequence[float], transforms: Callable[[tuple[int, ...]], nn.Module]) -> Change:
    """(images ``(B, C, H, W)``, generator) -> a new tensor alike, each sample changed by draws of its own.

    Args:
        mean, std: of each channel on the [0, 1] scale; images come and go normalised by them.
        transforms: shape ``(C, H, W)`` -> what is done to images in [0, 1].
    """

    def changed(images: Tensor, generator: torch.Generator) -> Tensor:
        centre, scale = (torch.tensor(values).to(images).view(1, -1, 1, 1) for values in (mean, std))
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # kornia draws from the processor's global generator
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
    and of hue by 0.1, and a turn by up to 10 degrees."""
    return by_kornia(mean, std, _photograph)
