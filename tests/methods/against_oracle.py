"""A played run beside the slow version of its method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedpriv.seeding import generator
from fedpriv.simulation.simulation import Simulation
from tests.oracles.global_baselines import Row, World

RAGGED = {
    "data.partition.name": "lognormal",
    "data.partition.size_offset": 5,
    "data.limit": 600,
    "train.participation": 0.4,
    "train.batch_size": 16,
    "train.weight_decay": 1e-2,
    "train.weight_decay_bias": 1e-3,
    "model.projection": 16,
    "eval.last": 1,
    "eval.every": 9,
}
"""Clients of different sizes, and so of different numbers of steps."""


def world(simulation: Simulation) -> World:
    fed, train = simulation.federation, simulation.config.train
    fed.resident.frozen.row.copy_(fed.initial)

    def batches(round: int, client: int) -> list[torch.Tensor]:
        draw = generator(simulation.config.seed, round, client, "train", 1, "shuffle")
        epochs = [torch.randperm(fed.data.size(client), generator=draw) for _ in range(train.local_epochs)]
        return [index for order in epochs for index in order.split(train.batch_size)]

    data = [tuple(fed.data.train(client)) for client in range(simulation.config.data.clients)]
    rates: dict[str, Any] = {"wd": train.weight_decay, "wd_bias": train.weight_decay_bias}
    return World(fed.resident.frozen.net, data, batches, train.lr, train.momentum, **rates)  # type: ignore[arg-type]


def replay(simulation: Simulation, one_round: Callable[..., None], **options: Any) -> World:
    """The oracle after as many rounds as the run has played."""
    slow = world(simulation)
    for round in range(1, simulation.progress.round + 1):
        one_round(slow, round, sorted(simulation.participants(round)), **options)
    return slow


def same(simulation: Simulation, expected: Row, rtol: float = 5e-4, atol: float = 5e-6) -> None:
    space, row = simulation.federation.resident.space, simulation.state.row
    for name, value in expected.items():
        torch.testing.assert_close(space.view(row, name).double(), value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
