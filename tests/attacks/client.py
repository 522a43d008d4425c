"""Clients to attack, whose messages come from torch's own SGD, independent of the attacks' code."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, ThreatModel

SHAPE = (1, 6, 6)
CLASSES = 5


def linear_net(seed: int = 0, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> SplitNet:
    torch.manual_seed(seed)
    return SplitNet(nn.Flatten(), nn.Linear(int(torch.tensor(shape).prod()), classes)).double()


def mlp(hidden: int = 40, act: type[nn.Module] = nn.ReLU, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> SplitNet:
    torch.manual_seed(0)
    pixels = int(torch.tensor(shape).prod())
    body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), act(), nn.Linear(hidden, 16), act())
    return SplitNet(body, nn.Linear(16, classes)).double()


class OfRows(nn.Module):
    """A net whose first linear layers get the rows of images ``(B, 1, 6, 6)``, not the flattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 24), nn.Linear(24, 8), nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.third(self.second(self.first(x).relu()).relu().flatten(1)).relu()
        return features


def pictures(n: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Random images in [0, 1], ``(n, *shape)``, double."""
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def observe(net: SplitNet, shared: dict[str, Tensor], **known: Any) -> Observation:
    """An observation of ``shared`` with the weights of ``net`` known; ``known`` overrides its fields."""
    fields: dict[str, Any] = {
        "kind": "gradient",
        "weights": {name: p.detach().clone() for name, p in net.named_parameters()},
        "net": net,
        "input_shape": SHAPE,
        "classes": CLASSES,
        "threat": ThreatModel(),
        **known,
    }
    return Observation(shared=shared, **fields)


def gradient(net: SplitNet, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean cross-entropy, by parameter name."""
    loss = F.cross_entropy(net(x), labels)
    return dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))


def change(net: SplitNet, x: Tensor, labels: Tensor, schedule: Schedule) -> dict[str, Tensor]:
    """The weight change of ``schedule.steps`` steps of SGD over consecutive batches, repeated."""
    trained = copy.deepcopy(net)
    weights = [p for p in trained.parameters() if p.ndim > 1]
    biases = [p for p in trained.parameters() if p.ndim <= 1]
    groups = [
        {"params": weights, "weight_decay": schedule.weight_decay},
        {"params": biases, "weight_decay": schedule.weight_decay_bias},
    ]
    optimiser = torch.optim.SGD(groups, lr=schedule.lr, momentum=schedule.momentum)
    batches = list(zip(x.split(schedule.batch_size), labels.split(schedule.batch_size), strict=True))
    for step in range(schedule.steps):
        inputs, targets = batches[step % len(batches)]
        optimiser.zero_grad()
        F.cross_entropy(trained(inputs), targets).backward()
        optimiser.step()
    before = dict(net.named_parameters())
    return {name: (p - before[name]).detach() for name, p in trained.named_parameters()}
