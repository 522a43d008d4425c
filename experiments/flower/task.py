"""The app's net and data: a ResNet-8 with group normalisation, and the samples that ``IMAGES_APP_DATA`` holds for each client."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Of CIFAR-10's training images."""
CLASSES, SHAPE = 10, (3, 32, 32)
TRAINING = {"lr": 0.1, "local_epochs": 3, "batch_size": 32}


class Block(nn.Module):
    """Two convolutions, with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)])
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(x))


class Net(nn.Module):
    """ResNet-8 (He et al., CVPR 2016, section 4.2, with n = 1)."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # all runs start from the same weights
            self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16)
            self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
            self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def _samples(name: str) -> tuple[Tensor, Tensor]:
    held = load_file(Path(os.environ["IMAGES_APP_DATA"]) / f"{name}.safetensors")
    return held["images"].float() / 255, held["labels"]


def client_samples(partition_id: int) -> tuple[Tensor, Tensor]:
    """What a client trains on: images in [0, 1], and labels."""
    return _samples(str(partition_id))


def other_samples() -> tuple[Tensor, Tensor]:
    """Images that are no client's."""
    return _samples("others")


def load_data(partition_id: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    images, labels = client_samples(partition_id)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return DataLoader(TensorDataset((images - mean) / std, labels), batch_size, shuffle=True)


def train(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], epochs: int, lr: float) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()


def test(net: nn.Module) -> float:
    """The accuracy on images that are no client's."""
    images, labels = other_samples()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    net.eval()
    with torch.no_grad():
        return float((net((images - mean) / std).argmax(1) == labels).float().mean())
