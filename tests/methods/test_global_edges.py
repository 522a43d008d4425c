"""The global baselines where there is next to nothing to learn from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedpriv.simulation.simulation import Simulation

GLOBAL = ["fedprox", "fednova", "scaffold", "fedpvr", "feddyn", "moon", "fedbn"]


@pytest.mark.parametrize("method", GLOBAL)
def test_clients_with_one_sample(simulate: Callable[..., Simulation], method: str) -> None:
    options = {
        "data.clients": 10,
        "data.limit": 10,
        "data.partition.name": "iid",
        "train.rounds": 4,
        "eval.every": 9,
        "eval.last": 1,
    }
    simulation = simulate(method, **options)
    assert {simulation.federation.data.size(client) for client in simulation.participants(1)} == {1}
    assert torch.isfinite(simulation.state.row).all()
    assert not torch.equal(simulation.state.row, simulation.federation.initial)


@pytest.mark.parametrize("method", GLOBAL)
def test_everybody_dropped_changes_nothing_on_either_side(simulate: Callable[..., Simulation], method: str) -> None:
    options = {"train.lr": 1e30, "train.on_nan": "drop", "train.local_epochs": 2, "eval.every": 9, "eval.last": 1}
    simulation = simulate(method, play=False, **options, **{"train.rounds": 2})
    before = simulation.state
    for record in simulation.rounds():
        assert record["metrics"]["dropped"] == record["metrics"]["participants"] == 3
        assert record["diverged"] == simulation.participants(record["round"])
    assert torch.equal(simulation.state.row, before.row) and simulation.progress.clients == {}
    assert simulation.state.memory.keys() == before.memory.keys()
    assert all(torch.equal(simulation.state.memory[name], tensor) for name, tensor in before.memory.items())


@pytest.mark.parametrize("method", ["fednova", "scaffold", "fedpvr", "moon", "fedbn"])
def test_the_only_client_is_trained_as_by_fedavg(simulate: Callable[..., Simulation], method: str) -> None:
    """Up to rounding: one client's weights are the mean's, its step count all clients', its variate all clients', and MOON's two
    reference models are the same one."""
    single_client = {
        "data.clients": 1,
        "train.participation": 1.0,
        "data.partition.name": "iid",
        "data.limit": 200,
        "train.momentum": 0.0,
    }
    fedavg, other = simulate("fedavg", **single_client), simulate(method, **single_client)
    torch.testing.assert_close(fedavg.state.row, other.state.row, rtol=1e-4, atol=1e-6)
