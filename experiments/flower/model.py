"""The net of NVFlare's first example, that of PyTorch's tutorial on CIFAR-10, and the samples that ``IMAGES_APP_DATA`` holds."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

SITES, ROUNDS = 4, 5
TRAINING = {"lr": 0.05, "local_epochs": 3, "batch_size": 16}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


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
    """The images of a site in [0, 1], and labels."""
    return _held(str(int(site.removeprefix("site-")) - 1))


def others() -> tuple[Tensor, Tensor]:
    return _held("others")


def _held(name: str) -> tuple[Tensor, Tensor]:
    held = load_file(Path(os.environ["IMAGES_APP_DATA"]) / f"{name}.safetensors")
    return held["images"].float() / 255, held["labels"]


def inputs(site: str) -> tuple[Tensor, Tensor]:
    """The same, as the net takes them."""
    images, labels = samples(site)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std, labels
