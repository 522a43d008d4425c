"""Two 5x5 convolutions and two fully connected layers: the encoders of FedRep, MpFedcon, MOON and LeNet-5.

Each convolution is unpadded and followed by 2x2 max pooling and ReLU, each fully connected layer by ReLU. (Pooling before ReLU
gives the same result as after it, with a quarter of the work.)
"""

from collections import OrderedDict

from torch import nn

from fedpriv.models.registry import Shape, register_model

SMALLEST = 16
"""Smallest side of an image for which the second pooling leaves a pixel."""


def two_conv_two_fc(
    input_shape: Shape,
    channels: tuple[int, int],
    widths: tuple[int, int],
    dropout: float | None = None,
    batch_norm: bool = False,
) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, widths[1]); optionally with BatchNorm after each convolution."""
    height, width = (((side - 4) // 2 - 4) // 2 for side in input_shape[1:])
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (into, out) in enumerate(((input_shape[0], channels[0]), channels), start=1):
        layers[f"conv{number}"] = nn.Conv2d(into, out, 5)
        if batch_norm:
            layers[f"bn{number}"] = nn.BatchNorm2d(out)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()
    layers.update(
        flatten=nn.Flatten(),
        fc1=nn.Linear(channels[1] * height * width, widths[0]),
        relu3=nn.ReLU(),
        fc2=nn.Linear(*widths),
        relu4=nn.ReLU(),
    )
    if dropout is not None:
        layers["dropout"] = nn.Dropout(dropout)
    return nn.Sequential(layers), widths[1]


@register_model(
    "cnn10", input_shape=(3, 32, 32), classes=10, smallest=SMALLEST, source="FedRep's and MpFedcon's CIFAR-10 net (1.2 MB)"
)
def cnn10(input_shape: Shape) -> tuple[nn.Module, int]:
    """64 and 64 channels, 120 and 64 units; the fifth layer of the released net is the head."""
    return two_conv_two_fc(input_shape, (64, 64), (120, 64))


@register_model(
    "cnn10_batchnorm",
    input_shape=(3, 32, 32),
    classes=10,
    smallest=SMALLEST,
    source="cnn10 with BatchNorm after its convolutions",
)
def cnn10_batchnorm(input_shape: Shape) -> tuple[nn.Module, int]:
    """cnn10 with BatchNorm, as in re-implementations of FedRep."""
    return two_conv_two_fc(input_shape, (64, 64), (120, 64), batch_norm=True)


@register_model("cnn100", input_shape=(3, 32, 32), classes=100, smallest=SMALLEST, source="FedRep's CIFAR-100 net (4.2 MB)")
def cnn100(input_shape: Shape) -> tuple[nn.Module, int]:
    """64 and 128 channels, 256 and 128 units, dropout 0.6 at the end."""
    return two_conv_two_fc(input_shape, (64, 128), (256, 128), dropout=0.6)


@register_model(
    "cnn100_64", input_shape=(3, 32, 32), classes=100, smallest=SMALLEST, source="cnn100 at the 2.2 MB that MpFedcon reports"
)
def cnn100_64(input_shape: Shape) -> tuple[nn.Module, int]:
    """cnn100 with 64 channels in both convolutions, which gives the size that MpFedcon reports."""
    return two_conv_two_fc(input_shape, (64, 64), (256, 128), dropout=0.6)


@register_model(
    "moon_cnn", input_shape=(3, 32, 32), classes=10, smallest=SMALLEST, source="MOON's SimpleCNN; the paper's projection is 256"
)
def moon_cnn(input_shape: Shape) -> tuple[nn.Module, int]:
    """6 and 16 channels, 120 and 84 units (Li et al. 2021)."""
    return two_conv_two_fc(input_shape, (6, 16), (120, 84))


@register_model(
    "lenet5", input_shape=(1, 28, 28), classes=10, smallest=SMALLEST, source="LeNet-5 with ReLU and max pooling; projection none"
)
def lenet5(input_shape: Shape) -> tuple[nn.Module, int]:
    """6 and 16 channels, 120 and 84 units: LeNet-5 as in federated benchmarks; 44,426 parameters on 1x28x28 with 10 classes."""
    return two_conv_two_fc(input_shape, (6, 16), (120, 84))
