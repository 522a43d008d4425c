"""LPIPS, if its weights are available locally; nothing is downloaded.

Learned perceptual image patch similarity (Zhang, Isola, Efros, Shechtman & Wang 2018): a weighted distance of a classifier's
features, here AlexNet's, 0 for equal images. torchmetrics computes it and brings the learned weights of the layers; those of
AlexNet must lie in the cache of ``torch.hub``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor


class Missing(Exception):
    """LPIPS cannot be computed here; the message says what is missing."""


def lpips(images: Tensor, true: Tensor) -> Tensor:
    """The distance per image ``(n,)`` of RGB images ``(n, 3, H, W)`` in [0, 1].

    Raises:
        Missing: torchmetrics or the weights of AlexNet are missing, or the images are not in colour or too small.
    """
    if images.shape[1] != 3 or min(images.shape[2:]) < 32:
        raise Missing("LPIPS is for colour images of 32x32 pixels or more")
    if find_spec("torchmetrics") is None:
        raise Missing("LPIPS needs the package torchmetrics")
    if not _backbone().is_file():
        raise Missing(f"LPIPS needs AlexNet's weights in torch's hub cache: {_backbone().name}")
    distance = import_module("torchmetrics.image").LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True)
    with torch.no_grad():
        pairs = zip(torch.split(images.float(), 1), torch.split(true.float(), 1), strict=True)
        return torch.stack([distance(*pair) for pair in pairs])


def _backbone() -> Path:
    """The file in which torchvision looks for the weights before it downloads them."""
    from torchvision.models import AlexNet_Weights

    return Path(torch.hub.get_dir(), "checkpoints", AlexNet_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
