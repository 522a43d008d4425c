"""Nets of which defences and messages show what those of the package would hide."""

from __future__ import annotations

from torch import nn


class SmoothConv(nn.Sequential):
    """A convolution and sigmoids, with the weights of DLG's net: no layer is fed the image, and gradient matching succeeds."""

    def __init__(self, in_channels: int = 1, classes: int = 10) -> None:
        super().__init__(nn.Conv2d(in_channels, 12, 5, padding=2, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, classes))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)


class ZeroHead(nn.Sequential):
    """A perceptron whose last layer begins at zero: no gradient reaches the layers below until it has moved."""

    def __init__(self, in_channels: int = 1, classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64 * in_channels, 6), nn.Tanh(), nn.Linear(6, classes))
        nn.init.zeros_(self[3].weight)
        nn.init.zeros_(self[3].bias)


class NormedConv(nn.Sequential):
    """Two convolutions with BatchNorm, whose running statistics are sent."""

    def __init__(self, in_channels: int = 1, classes: int = 10) -> None:
        first, second = nn.Conv2d(in_channels, 16, 3, padding=1), nn.Conv2d(16, 24, 3, 2)
        super().__init__(
            first, nn.BatchNorm2d(16), nn.ReLU(), second, nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(216, classes)
        )
