"""MpFedcon and FedRep against the independent slow version, over several rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedpriv.methods.mpfedcon import CENTERS, MASK
from fedpriv.seeding import generator
from fedpriv.simulation.simulation import Simulation
from tests.oracles import layered


def oracle(
    simulation: Simulation, mu: float, tau: float
) -> tuple[torch.nn.Module, dict[int, torch.nn.Module], dict[int, Tensor]]:
    fed, config = simulation.federation, simulation.config
    net = fed.resident.frozen.net
    fed.resident.frozen.row.copy_(fed.initial)

    def batches(round: int, client: int, phase: int, epochs: int) -> list[list[Tensor]]:
        draw = generator(config.seed, round, client, "train", phase, "shuffle")
        return [list(torch.randperm(fed.data.size(client), generator=draw).split(config.train.batch_size)) for _ in range(epochs)]

    return layered.run(
        net, [tuple(fed.data.train(i)) for i in range(config.data.clients)],  # type: ignore[misc]
        [sorted(simulation.participants(t)) for t in range(1, config.train.rounds + 1)], batches,
        mu=mu, tau=tau, head_epochs=2, encoder_epochs=2, lr=config.train.lr, momentum=config.train.momentum,
        wd=config.train.weight_decay, wd_bias=config.train.weight_decay_bias, classes=10,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("method", "mu", "cache"),
    [
        pytest.param("mpfedcon", 5.0, True, marks=pytest.mark.slow),
        pytest.param("mpfedcon", 0.5, False, marks=pytest.mark.slow),
        pytest.param("fedrep", 0.0, True, marks=pytest.mark.slow),
        ("fedrep", 0.0, False),
    ],
)
def test_three_rounds_equal_the_oracle(simulate: Callable[..., Simulation], method: str, mu: float, cache: bool) -> None:
    options = {"method.mu": mu, "method.tau": 0.7} if method == "mpfedcon" else {}
    wd = {"train.weight_decay": 1e-2, "train.weight_decay_bias": 1e-3, "train.cache_features": cache}
    short = {"method.head_epochs": 2, "train.local_epochs": 2, "model.projection": 16, "data.limit": 600}
    simulation = simulate(method, **options, **wd, **short)
    encoder, local, centers = oracle(simulation, mu, 0.7)
    space, row = simulation.federation.resident.space, simulation.state.row
    for name, expected in encoder.named_parameters():
        torch.testing.assert_close(space.view(row, f"encoder.{name}").double(), expected.data, rtol=2e-4, atol=2e-6)
    assert set(local) == set(simulation.progress.clients)
    for client, net in local.items():
        kept = simulation.private(client)
        for name in ("projector.fc1.weight", "head.weight", "head.bias"):
            torch.testing.assert_close(kept[name].double(), dict(net.named_parameters())[name].data, rtol=2e-4, atol=2e-6)
    if method == "mpfedcon":
        memory = simulation.state.memory
        assert set(memory[MASK].nonzero().flatten().tolist()) == set(centers)
        for c, center in centers.items():
            torch.testing.assert_close(memory[CENTERS][c].double(), center, rtol=2e-4, atol=2e-6)
