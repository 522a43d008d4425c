"""ResNet, DenseNet and VGG from torchvision, untrained.

Images whose smaller side is at most 64 pixels get the CIFAR stem, unless the net's name says otherwise. torchvision is imported
when a net is built.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from torch import nn

from fedpriv.models.registry import Shape, register_model

CIFAR_STEM_UP_TO = 64
"""In pixels. The ImageNet stems reduce the sides fourfold before the first block, too much for small images."""


def _is_small(input_shape: Shape) -> bool:
    return min(input_shape[1:]) <= CIFAR_STEM_UP_TO


def _stem(original: nn.Conv2d, input_shape: Shape, small: bool, fan: Literal["fan_in", "fan_out"]) -> nn.Conv2d:
    """The first convolution: torchvision's own if it fits the input, or else another one with the same initialisation."""
    if not small and input_shape[0] == original.in_channels:
        return original
    if small:
        conv = nn.Conv2d(input_shape[0], original.out_channels, 3, stride=1, padding=1, bias=False)
    else:
        conv = nn.Conv2d(input_shape[0], original.out_channels, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode=fan, nonlinearity="relu")
    return conv


def _out_of_place(module: nn.Module) -> nn.Module:
    """Turn off in-place activations, because hooks and torch.func need the values before them."""
    for child in module.modules():
        if isinstance(child, nn.ReLU):
            child.inplace = False
    return module


def _resnet(name: str, input_shape: Shape, small: bool) -> tuple[nn.Module, int]:
    from torchvision.models import get_model  # type: ignore[import-untyped, unused-ignore]

    net = get_model(name, weights=None)
    width: int = net.fc.in_features
    net.conv1 = _stem(net.conv1, input_shape, small, "fan_out")
    if small:
        net.maxpool = nn.Identity()
    net.fc = nn.Identity()
    return _out_of_place(net), width


def _densenet(name: str, input_shape: Shape, small: bool) -> tuple[nn.Module, int]:
    from torchvision.models import get_model

    net = get_model(name, weights=None)
    features, width = net.features, net.classifier.in_features
    features.conv0 = _stem(features.conv0, input_shape, small, "fan_in")
    if small:
        features.pool0 = nn.Identity()
    # Not torchvision's forward, which applies the last ReLU in place.
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        features=features, relu=nn.ReLU(), avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()
    )
    return _out_of_place(nn.Sequential(layers)), width


def _register(
    name: str, classes: int, build: Callable[[str, Shape, bool], tuple[nn.Module, int]], source: str, cifar_stem: bool = True
) -> None:
    """Register a net of torchvision, whose name ``_imagenet`` may follow."""

    def encoder(input_shape: Shape) -> tuple[nn.Module, int]:
        return build(name.removesuffix("_imagenet"), input_shape, cifar_stem and _is_small(input_shape))

    smallest = 8 if cifar_stem else 32
    register_model(name, input_shape=(3, 32, 32), classes=classes, smallest=smallest, source=source)(encoder)


_LIKE_SIMPROX = "with the ImageNet stem on any input, as SimProx seems to have it"
_register("resnet18", 10, _resnet, "He et al. 2016; CIFAR stem up to 64 px")
_register("resnet18_imagenet", 10, _resnet, f"resnet18 {_LIKE_SIMPROX}", cifar_stem=False)
_register("resnet50", 100, _resnet, "He et al. 2016; CIFAR stem up to 64 px")
_register("densenet121", 100, _densenet, "Huang et al. 2017; CIFAR stem up to 64 px")
_register("densenet121_imagenet", 10, _densenet, f"densenet121 {_LIKE_SIMPROX}", cifar_stem=False)


@register_model(
    "vgg16",
    input_shape=(3, 32, 32),
    classes=10,
    smallest=32,
    source="Simonyan and Zisserman 2015; no hidden FC layers up to 64 px",
)
def vgg16(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, 512) for small images, pooled to one pixel; otherwise (B, 4096), with both hidden FC layers."""
    from torchvision.models import vgg

    layers: OrderedDict[str, nn.Module]
    if _is_small(input_shape):
        # Not torchvision's constructor, which would also draw 120 M parameters of fully connected layers.
        features, width = vgg.make_layers(vgg.cfgs["D"]), 512
        layers = OrderedDict(features=features, avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        stale = [layer for layer in features if isinstance(layer, nn.Conv2d)]
    else:
        net = vgg.vgg16(weights=None)
        features, width = net.features, 4096
        layers = OrderedDict(features=features, avgpool=net.avgpool, flatten=nn.Flatten(), classifier=net.classifier[:-1])
        stale = []
    if input_shape[0] != 3:
        features[0] = nn.Conv2d(input_shape[0], 64, 3, padding=1)
        stale = [features[0], *stale[1:]]
    for convolution in stale:  # torchvision's initialisation
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        if convolution.bias is not None:
            nn.init.zeros_(convolution.bias)
    return _out_of_place(nn.Sequential(layers)), width
