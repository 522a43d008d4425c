"""The views of SimCLR."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from torch import nn

from fedpriv.data.augmentation.by_kornia import Change, by_kornia

WIDEST = 2.0
"""Standard deviation of the strongest blur, in pixels."""


@cache
def _transforms(shape: tuple[int, ...], blur: bool) -> nn.Module:
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

    return by_kornia(mean, std, lambda shape: _transforms(shape, blur))
