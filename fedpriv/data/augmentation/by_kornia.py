"""Augmentations of kornia for whole batches of normalised images on their device, with our own random generator.

lightly's and torchvision's transforms process one PIL image at a time, which would slow down training on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

WIDEST = 2.0
"""Standard deviation of the strongest blur of SimCLR, in pixels."""
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


@cache
def _views(shape: tuple[int, ...], blur: bool) -> nn.Module:
    """The transforms for images ``(C, H, W)`` in [0, 1]; those of colour are left out for grey images."""
    from kornia import augmentation

    colour = shape[0] == 3
    chain: list[nn.Module] = [
        # The default, "slice", crops one image at a time.
        augmentation.RandomResizedCrop(shape[1:], scale=(0.2, 1.0), cropping_mode="resample"),
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.ColorJitter(0.4, 0.4, 0.4 if colour else 0.0, 0.1 if colour else 0.0, p=0.8),
    ]
    if colour:
        chain.append(augmentation.RandomGrayscale(p=0.2))
    # Three standard deviations to each side, or as much as mirroring allows for a small image.
    sides = tuple(2 * min(round(3 * WIDEST), side - 1) + 1 for side in shape[1:])
    if blur and min(sides) > 1:
        chain.append(augmentation.RandomGaussianBlur(sides, (0.1, WIDEST), p=0.5))
    return nn.Sequential(*chain)


def simclr_views(mean: Sequence[float], std: Sequence[float], blur: bool = True) -> Change:
    """The augmentation of L-DAWA's code, with draws for each sample: a crop of 20 to 100 % of the area, resized to full size,
    a flip (one half), jitter of brightness, contrast and saturation by 0.4 and of hue by 0.1 (0.8), grey (0.2), and a Gaussian
    blur of 0.1 to 2 pixels (one half). The order of the four jitters is drawn once for a batch.

    Args:
        mean, std: of each channel on the [0, 1] scale; input and output are normalised by them.
        blur: SimCLR's authors blur on ImageNet, but not on CIFAR.

    Returns:
        (images ``(B, C, H, W)``, generator) -> a new tensor of that shape. Images of one channel have no saturation, hue or grey.
    """

    return by_kornia(mean, std, lambda shape: _views(shape, blur))
