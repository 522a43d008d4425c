"""LeNets with tanh and average pooling: LeNet-5 (LeCun et al. 1998), and the LeNet of FedDUAL's code."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedpriv.models.net import Net
from fedpriv.models.registry import Shape, register_model


def glorot(net: Net) -> None:
    """Initialise weights by Glorot's uniform distribution and biases by zero, the default of Keras."""
    for parameter in net.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)


def _convolutions(channels: int, second: int, padding: int) -> OrderedDict[str, nn.Module]:
    """5x5 convolutions to 6 and to ``second`` channels, each followed by tanh and average pooling."""
    return OrderedDict(
        conv1=nn.Conv2d(channels, 6, 5, padding=padding),
        tanh1=nn.Tanh(),
        pool1=nn.AvgPool2d(2),
        conv2=nn.Conv2d(6, second, 5),
        tanh2=nn.Tanh(),
        pool2=nn.AvgPool2d(2),
    )


@register_model(
    "lenet5_tanh",
    input_shape=(1, 28, 28),
    classes=10,
    smallest=12,
    initialise=glorot,
    source="LeCun et al. 1998, padded by 2: 61,706 parameters with 10 classes; projection none",
)
def lenet5_tanh(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, 84): 6 and 16 channels, 120 and 84 units."""
    height, width = ((side // 2 - 4) // 2 for side in input_shape[1:])
    layers = _convolutions(input_shape[0], 16, padding=2)
    layers |= OrderedDict(
        flatten=nn.Flatten(), fc1=nn.Linear(16 * height * width, 120), tanh3=nn.Tanh(), fc2=nn.Linear(120, 84), tanh4=nn.Tanh()
    )
    return nn.Sequential(layers), 84


@register_model(
    "lenet_released",
    input_shape=(1, 28, 28),
    classes=10,
    smallest=16,
    initialise=glorot,
    source="FedDUAL's released LeNet: 164,116 parameters with 10 classes; projection none",
)
def lenet_released(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, 84): 6 and 6 channels, 120 units at each pixel (before the flattening), 84 units.

    The layer of 84 units holds 98 % of the parameters.
    """
    height, width = (((side - 4) // 2 - 4) // 2 for side in input_shape[1:])
    layers = _convolutions(input_shape[0], 6, padding=0)
    layers |= OrderedDict(
        fc1=nn.Conv2d(6, 120, 1),  # Keras' Dense acts on the last axis, so it is the same layer at each pixel
        tanh3=nn.Tanh(),
        flatten=nn.Flatten(),
        fc2=nn.Linear(120 * height * width, 84),
        tanh4=nn.Tanh(),
    )
    return nn.Sequential(layers), 84
