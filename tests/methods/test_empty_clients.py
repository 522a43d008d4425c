"""Clients that hold no data are registered, and count nowhere: not in a mean over all clients, not in a share of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedpriv.simulation.open_keys import with_default_share
from fedpriv.simulation.simulation import Simulation
from tests.simulation.small import config

Simulate = Callable[..., Simulation]
EMPTY: dict[str, Any] = {
    "data.clients": 100,
    "data.limit": None,
    "data.partition.name": "class_dir",
    "data.partition.alpha": 0.01,
    "data.partition.min_samples": 0,
    "eval.every": 9,
    "eval.last": 1,
}
"""55 of the 100 hold nothing."""
HOLDERS = 45
ONE_STEP: dict[str, Any] = {
    "train.participation": 1.0,
    "train.batch_size": 2000,
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
}
"""Of all clients in each round, one of plain SGD on all their samples."""
UNIFORM = {"method.weights": "uniform"}


def moved(simulation: Simulation) -> torch.Tensor:
    return simulation.state.row - simulation.federation.initial


def test_scaffold_with_all_clients_and_one_step_is_fedavg(simulate: Simulate) -> None:
    """The corrections, c - c_k, then have mean zero over the clients."""
    scaffold = simulate("scaffold", **EMPTY, **ONE_STEP)
    assert len(scaffold.federation.data.nonempty) == HOLDERS
    fedavg = simulate("fedavg", **EMPTY, **ONE_STEP, **UNIFORM)
    torch.testing.assert_close(moved(scaffold), moved(fedavg), rtol=1e-4, atol=1e-6)
    kept = [scaffold.stored(client) or {} for client in scaffold.federation.data.nonempty]
    for name, c in scaffold.state.memory.items():
        own = torch.stack([state[name.replace("statistic.", "scaffold.")] for state in kept])
        torch.testing.assert_close(own.mean(0), c, rtol=1e-4, atol=1e-6)


def test_feddyn_with_all_clients_adds_their_mean_displacement(simulate: Simulate) -> None:
    options = {**EMPTY, **ONE_STEP, "train.rounds": 1, "train.clip_grad_norm": 1e6}
    feddyn, fedavg = simulate("feddyn", **options), simulate("fedavg", **options, **UNIFORM)
    torch.testing.assert_close(moved(feddyn), 2 * moved(fedavg), rtol=1e-4, atol=1e-6)


def test_client_level_dp_divides_by_expected_clients(simulate: Simulate) -> None:
    options = {**EMPTY, **ONE_STEP, "train.rounds": 1}
    hardly = {"privacy.level": "client", "privacy.noise": 1e-5, "privacy.clip": 1.0}
    noisy, fedavg = simulate("fedavg", **options, **hardly), simulate("fedavg", **options, **UNIFORM)
    torch.testing.assert_close(moved(noisy), moved(fedavg), rtol=1e-3, atol=2e-6)


def test_default_participation_is_ten_clients_with_data(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **EMPTY, **{"train.participation": None})
    assert [len(simulation.participants(round)) for round in range(1, 6)] == [10] * 5
    assert simulation.config.train.participation == 10 / HOLDERS


@pytest.mark.parametrize(("clients", "share"), [(100, 0.1), (30, 10 / 30), (7, 1.0), (0, 1.0)])
def test_the_usual_share(clients: int, share: float) -> None:
    open_ = config("fedavg", **{"train.participation": None})
    assert with_default_share(open_, clients).train.participation == share
    chosen = config("fedavg", **{"train.participation": 0.3})
    assert with_default_share(chosen, clients) is chosen
