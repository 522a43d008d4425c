"""A ResNet of an eighth of the width: residual blocks and BatchNorm at a cost that is feasible on a CPU."""

from collections import OrderedDict

from torch import nn

from fedpriv.models.registry import Shape, register_model


@register_model(
    "resnet9_narrow",
    input_shape=(3, 32, 32),
    classes=10,
    smallest=8,
    source="lightly's CIFAR ResNet-9 at an eighth of the width (77 k parameters): a stand-in for ResNet-18 without a GPU",
)
def resnet9_narrow(input_shape: Shape) -> tuple[nn.Module, int]:
    """(B, C, H, W) -> (B, 64): stem of 8 channels, one basic block each of 8, 16, 32 and 64."""
    from lightly.models.resnet import ResNetGenerator  # type: ignore[import-untyped, unused-ignore]

    net = ResNetGenerator("resnet-9", width=1 / 8)
    if input_shape[0] != 3:
        net.conv1 = nn.Conv2d(input_shape[0], net.conv1.out_channels, 3, padding=1, bias=False)
    # Reassembled, as lightly's forward always pools over 4 x 4 pixels.
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=net.conv1, bn1=net.bn1, relu=nn.ReLU(), layer1=net.layer1, layer2=net.layer2, layer3=net.layer3, layer4=net.layer4,
        avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(layers), 64
