"""The LeNet with sigmoids, on which gradient inversion is usually shown (Zhu et al., NeurIPS 2019)."""

from collections import OrderedDict

import torch
from torch import nn

from fedpriv.models.net import Net
from fedpriv.models.registry import Shape, register_model


def _uniform_half(net: Net) -> None:
    """Draw all weights and biases from U(-0.5, 0.5), as DLG's code does.

    The attack needs this scale: with torch's default, gradients through the sigmoids are too small to match.
    """
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-0.5, 0.5)


@register_model(
    "lenet_sigmoid",
    input_shape=(3, 32, 32),
    classes=100,
    smallest=1,
    initialise=_uniform_half,
    source="DLG's and iDLG's released LeNet; projection none",
)
def lenet_sigmoid(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, 12 * ceil(H/4) * ceil(W/4)), 768 for 32x32: three padded 5x5 convolutions (Zhu et al. 2019)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = input_shape[0]
    for i, stride in enumerate((2, 2, 1), start=1):
        layers[f"conv{i}"] = nn.Conv2d(channels, 12, 5, stride=stride, padding=2)
        layers[f"sigmoid{i}"] = nn.Sigmoid()
        channels = 12
    layers["flatten"] = nn.Flatten()
    height, width = (-(-side // 4) for side in input_shape[1:])
    return nn.Sequential(layers), 12 * height * width
