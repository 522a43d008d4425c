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


def _register(
    name: str,
    channels: tuple[int, int],
    widths: tuple[int, int],
    source: str,
    classes: int = 10,
    input_shape: Shape = (3, 32, 32),
    dropout: float | None = None,
    batch_norm: bool = False,
) -> None:
    def build(input_shape: Shape) -> tuple[nn.Module, int]:
        return two_conv_two_fc(input_shape, channels, widths, dropout, batch_norm)

    register_model(name, input_shape=input_shape, classes=classes, smallest=SMALLEST, source=source)(build)


# The fifth layer of the released net is the head.
_register("cnn10", (64, 64), (120, 64), "FedRep's and MpFedcon's CIFAR-10 net (1.2 MB)")
_register("cnn10_batchnorm", (64, 64), (120, 64), "cnn10 with BatchNorm after its convolutions", batch_norm=True)
_register("cnn100", (64, 128), (256, 128), "FedRep's CIFAR-100 net (4.2 MB)", classes=100, dropout=0.6)
_register("cnn100_64", (64, 64), (256, 128), "cnn100 at the 2.2 MB that MpFedcon reports", classes=100, dropout=0.6)
_register("moon_cnn", (6, 16), (120, 84), "MOON's SimpleCNN; the paper's projection is 256")  # Li et al. 2021
# As in federated benchmarks: 44,426 parameters on 1x28x28 with 10 classes.
_register("lenet5", (6, 16), (120, 84), "LeNet-5 with ReLU and max pooling; projection none", input_shape=(1, 28, 28))
