"""The net of NVFlare's first example, that of PyTorch's tutorial on CIFAR-10, and images for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SITES, ROUNDS, SAMPLES = 2, 2, 32
TRAINING = {"lr": 0.05, "local_epochs": 1, "batch_size": 8}
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


class SimpleNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # all runs start from the same weights
            self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def samples(site: str) -> tuple[Tensor, Tensor]:
    """The images of a site in [0, 1], drawn at random, and labels."""
    draws = torch.Generator().manual_seed(sum(site.encode()))
    return torch.rand(SAMPLES, 3, 32, 32, generator=draws), torch.arange(SAMPLES) % 10


def others() -> tuple[Tensor, Tensor]:
    return samples("no site")


def inputs(site: str) -> tuple[Tensor, Tensor]:
    """The same, as the net takes them."""
    images, labels = samples(site)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std, labels
