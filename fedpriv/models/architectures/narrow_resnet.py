"""A ResNet of an eighth of the usual width, which can be trained on a CPU."""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.models.registry import Shape, register_model


class _Block(nn.Module):
    """The basic block of He et al. (2016); if the width changes, the sides are halved."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        stride = 1 if width_in == width else 2
        self.conv1 = _convolution(width_in, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, width_in, H, W)`` -> ``(B, width, H, W)``, or half the sides."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def _convolution(width_in: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)


@register_model(
    "resnet9_narrow",
    input_shape=(3, 32, 32),
    classes=10,
    smallest=8,
    source="lightly's CIFAR ResNet-9 at an eighth of the width (77 k parameters): a stand-in for ResNet-18 without a GPU",
)
def resnet9_narrow(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, 64): stem of 8 channels, one basic block each of 8, 16, 32 and 64."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=_convolution(3, 8), bn1=nn.BatchNorm2d(8), relu=nn.ReLU())
    for number, (width_in, width) in enumerate(((8, 8), (8, 16), (16, 32), (32, 64)), start=1):
        layers[f"layer{number}"] = nn.Sequential(_Block(width_in, width))
    layers |= OrderedDict(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    nn.Linear(64, 10)  # lightly draws a head, too; it keeps the initial weights the same for a seed
    if input_shape[0] != 3:
        layers["conv1"] = _convolution(input_shape[0], 8)
    return nn.Sequential(layers), 64
