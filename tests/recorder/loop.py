"""A small federation in a plain training loop, recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedpriv
from fedpriv.recorder.reader import Recorded

LR, BATCH = 0.5, 4
Samples = tuple[Tensor, Tensor]


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))


def samples(number: int, seed: int) -> Samples:
    draws = torch.Generator().manual_seed(seed)
    return torch.rand(number, 1, 6, 6, generator=draws), torch.arange(number) % 3


def trained(net: nn.Module, data: Samples, lr: float = LR) -> dict[str, Tensor]:
    optimiser = torch.optim.SGD(net.parameters(), lr)
    for batch in torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(7)).split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(net(data[0][batch]), data[1][batch]).backward()
        optimiser.step()
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def federation(
    clients: Mapping[str, Samples], rounds: int, lr: float = LR
) -> Iterator[tuple[int, str, dict[str, Tensor], dict[str, Tensor]]]:
    """Yield (round, client, what it is sent, what it answers) of FedAvg."""
    torch.manual_seed(0)
    net = small_net()
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for round in range(1, rounds + 1):
        answers = []
        for name, data in clients.items():
            net.load_state_dict(weights)
            answers.append(trained(net, data, lr))
            yield round, name, weights, answers[-1]
        weights = {name: torch.stack([answer[name] for answer in answers]).mean(0) for name in weights}


def recorded(folder: Path, rounds: int = 2, lr: float = LR, **facts: Any) -> Recorded:
    """The record of two clients."""
    clients = {"north": samples(6, 1), "south/2": samples(6, 2)}
    all_facts = {"training": {"lr": LR, "local_epochs": 1, "batch_size": BATCH}, "net": small_net, **facts}
    with fedpriv.recording(folder, classes=3, input_shape=(1, 6, 6), **all_facts) as record:
        for name, data in clients.items():
            record.truth(name, *data)
        record.public(*samples(36, 3))
        for round, name, sent, answer in federation(clients, rounds, lr):
            record.sent(round, name, sent)
            record.answered(round, name, answer, num_examples=6)
    return Recorded(folder)
