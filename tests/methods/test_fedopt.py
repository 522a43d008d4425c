"""FedOpt: the server's optimisers against numpy, and where they are the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.simulation.simulation import Simulation

Simulate = Callable[..., Simulation]
RULES = ("adam", "yogi", "adagrad")


def oracle(rule: str, start: np.ndarray[Any, Any], changes: list[np.ndarray[Any, Any]], lr: float, tau: float) -> Any:
    """Reddi et al. 2021, algorithm 2, entry by entry in float64, with b1 = 0.9 and b2 = 0.99."""
    x, m, v = start.astype(np.float64), np.zeros(start.size), np.full(start.size, tau**2)
    for change in changes:
        for i, d in enumerate(change.astype(np.float64)):
            m[i] = 0.9 * m[i] + 0.1 * d
            if rule == "adam":
                v[i] = 0.99 * v[i] + 0.01 * d**2
            elif rule == "yogi":
                v[i] -= 0.01 * d**2 * (1 if v[i] > d**2 else -1 if v[i] < d**2 else 0)
            else:
                v[i] += d**2
            x[i] += lr * m[i] / (v[i] ** 0.5 + tau)
    return x


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_equal_the_oracle(simulate: Simulate, rule: str) -> None:
    """With one client a round, whose upload is the mean; the oracle gets the changes that crossed the wire."""
    settings = {"data.clients": 3, "data.limit": 60, "train.participation": 0.34, "model.name": "mlp2", "method.rule": rule}
    simulation = simulate("fedopt", play=False, **settings, **{"method.server_lr": 0.03, "method.tau": 0.01})
    start, changes = simulation.state.row.numpy().copy(), []
    crossed: list[Any] = []
    simulation.taps.append(lambda way, sealed: crossed.append(sealed.tensors()) if way == "up" else None)
    space = simulation.federation.resident.space
    for _ in range(3):
        before = simulation.state.row.clone()
        simulation.run_round()
        changes.append((space.pack(crossed[-1], before.clone()) - before).numpy())
    assert len(crossed) == 3
    some = np.random.default_rng(0).choice(start.size, 2000, replace=False)
    expected = oracle(rule, start[some], [change[some] for change in changes], 0.03, 0.01)
    np.testing.assert_allclose(simulation.state.row.numpy()[some], expected, rtol=0, atol=2e-6)
    assert np.abs(expected - start[some]).max() > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_with_a_large_tau_it_is_the_mean(simulate: Simulate, rule: str) -> None:
    """Then sqrt(v) is tau in every entry, and the step ``lr D / (2 tau)``."""
    settings = {"data.limit": 100, "model.name": "mlp2", "train.rounds": 2}
    mean = simulate("fedavg", **settings)
    given = {"method.beta1": 0.0, "method.beta2": 0.0 if rule == "yogi" else 0.99, "method.tau": 1e3, "method.server_lr": 2e3}
    simulation = simulate("fedopt", **settings, **given, **{"method.rule": rule, "method.weights": "samples"})
    initial = mean.federation.initial
    factor = 1.005 if rule == "adam" else 1.0  # sqrt(0.99) after the first round
    moved, expected = simulation.state.row - initial, mean.state.row - initial
    assert float((moved - expected).norm() / expected.norm()) < 3 * (factor - 1) + 1e-3


def test_what_is_masked_keeps_its_momentum(simulate: Simulate) -> None:
    """Of layers that are not sent, nothing changes."""
    settings = {"data.limit": 100, "model.name": "mlp2", "train.rounds": 2, "wire.transforms": [{"name": "mask", "last": 1}]}
    simulation = simulate("fedopt", **settings)
    space, memory = simulation.federation.resident.space, simulation.state.memory
    hidden = [name for name in space.names if name.startswith("head.")]
    for name in hidden:
        assert not space.view(memory["fedopt.momentum"], name).any()
        assert torch.equal(space.view(simulation.state.row, name), space.view(simulation.federation.initial, name))
    assert space.view(memory["fedopt.momentum"], "encoder.fc1.weight").any()
