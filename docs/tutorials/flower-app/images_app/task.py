"""The net, the data of a client, and its training."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

PER_CLIENT, OTHERS = 32, 400


class Net(nn.Module):
    """A convolution and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 8 * 8, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(F.relu(self.hidden(F.relu(self.conv(images)).flatten(1))))


def digits() -> tuple[Tensor, Tensor]:
    """All images (n, 1, 8, 8) in [0, 1] and labels."""
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


def client_samples(partition_id: int) -> tuple[Tensor, Tensor]:
    """What a client trains on."""
    images, labels = digits()
    own = slice(partition_id * PER_CLIENT, (partition_id + 1) * PER_CLIENT)
    return images[own], labels[own]


def other_samples() -> tuple[Tensor, Tensor]:
    """Images that are no client's."""
    images, labels = digits()
    return images[-OTHERS:], labels[-OTHERS:]


def load_data(partition_id: int, batch_size: int) -> DataLoader:
    draws = torch.Generator().manual_seed(partition_id)
    return DataLoader(TensorDataset(*client_samples(partition_id)), batch_size, shuffle=True, generator=draws)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> None:
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
    net.eval()
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).float().mean())
