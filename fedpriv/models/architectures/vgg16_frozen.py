"""FedDUAL's net for CIFAR: frozen VGG16 convolutions with ImageNet weights, and a trained layer of 64 units.

The convolutions are not part of the net's state: they are loaded once per process, on first use, and shared by all nets. Only the
layer of 64 units and the head are trained, sent and stored: 33,482 numbers with 10 classes.
"""

from __future__ import annotations

import functools
from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedpriv.errors import UsageError
from fedpriv.models.registry import Shape, register_model

_FILE = "vgg16-397923af.pth"


@functools.cache
def convolutions(device: str) -> nn.Module:
    """VGG16's convolutional layers with torchvision's ImageNet weights, in evaluation mode.

    Raises:
        UsageError: the weights are not in torch's cache and cannot be downloaded.
    """
    from torchvision.models import VGG16_Weights, vgg16

    try:
        features: nn.Module = vgg16(weights=VGG16_Weights.IMAGENET1K_V1).features
    except OSError as error:
        raise UsageError(
            f"vgg16_frozen needs torchvision's ImageNet weights, and they cannot be loaded ({error}); "
            f"put {_FILE} into {torch.hub.get_dir()}/checkpoints"
        ) from None
    return features.to(device).eval().requires_grad_(False)


class FrozenConvolutions(nn.Module):
    """(B, 3, H, W) -> (B, 512), the mean over the remaining pixels; without parameters."""

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = convolutions(str(images.device))(images)
        return features.mean((2, 3))


@register_model(
    "vgg16_frozen",
    input_shape=(3, 32, 32),
    classes=10,
    smallest=32,
    source="FedDUAL's released head on ImageNet's VGG16, which is downloaded; projection none",
)
def vgg16_frozen(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, 3, H, W) -> (B, 64)."""
    if input_shape[0] != 3:
        raise UsageError(f"model 'vgg16_frozen': ImageNet's weights are for 3 channels, not {input_shape[0]}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(convolutions=FrozenConvolutions(), fc1=nn.Linear(512, 64), relu1=nn.ReLU())
    return nn.Sequential(layers), 64
