"""FedProx and fine-tuning before the test."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedpriv.objectives.proximal import on_received
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation.simulation import Simulation
from tests.marks import quick_first
from tests.methods.against_oracle import RAGGED, replay, same
from tests.oracles import global_baselines as oracles

Simulate = Callable[..., Simulation]


@pytest.mark.parametrize("momentum", quick_first([0.0, 0.9]))
def test_three_rounds_equal_the_oracle(simulate: Simulate, momentum: float) -> None:
    simulation = simulate("fedprox", **RAGGED, **{"method.mu": 0.5, "train.momentum": momentum})
    same(simulation, replay(simulation, oracles.fedprox, mu=0.5).model)


@pytest.mark.parametrize("optimizer", quick_first(["sgd", "adam"]))
def test_without_a_pull_it_is_fedavg_bit_for_bit(simulate: Simulate, optimizer: str) -> None:
    shared = {"train.optimizer": optimizer, "train.lr": 0.01}
    plain, off, on = (
        simulate("fedavg", **shared),
        simulate("fedprox", **shared, **{"method.mu": 0}),
        simulate("fedprox", **shared),
    )
    assert torch.equal(plain.state.row, off.state.row)
    assert not torch.equal(plain.state.row, on.state.row)


def test_a_strong_pull_keeps_clients_near_the_received_model(simulate: Simulate) -> None:
    shared = {"train.rounds": 1, "train.momentum": 0.0, "train.local_epochs": 3}
    moved = []
    for mu in (0.0, 1.0, 10.0):
        run = simulate("fedprox", **shared, **{"method.mu": mu})
        moved.append(float((run.state.row - run.federation.initial).norm()))
    assert moved[0] > moved[1] > moved[2] > 0


def test_a_client_keeps_nothing_and_sends_only_its_model(simulate: Simulate) -> None:
    simulation = simulate("fedprox")
    assert simulation.progress.clients == {} and simulation.state.memory == {}


def test_only_parameters_that_the_server_sent_are_pulled() -> None:
    """Not a personal head, which has no global value; not running statistics."""
    net = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "head": nn.Linear(3, 2)})
    space = ParameterSpace.of(net)
    received = {name: torch.zeros(()) for name in space.select(["encoder"])}
    update = SimpleNamespace(received=received, start=torch.zeros(space.size))
    strength = space.unpack(on_received(update, space, 3.0))  # type: ignore[arg-type]
    pulled = {name for name, row in strength.items() if bool((row == 3).all())}
    assert pulled == {"encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias"}
    assert all(not row.any() for name, row in strength.items() if name not in pulled)


@pytest.mark.parametrize("method", quick_first(["fedprox", "scaffold"]))
def test_fine_tuning_is_without_corrections_and_changes_no_state(simulate: Simulate, method: str) -> None:
    plain, tuned = simulate(method), simulate(f"{method}-ft", **{"method.ft_epochs": 2})
    assert torch.equal(plain.state.row, tuned.state.row)
    for client in plain.progress.clients:
        before, after = plain.stored(client), tuned.stored(client)
        assert before is not None and after is not None and before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    accuracy = [[r["metrics"].get("accuracy") for r in s.folder.records()] for s in (plain, tuned)]
    assert accuracy[0][:-1] == accuracy[1][:-1] and accuracy[1][-1] > accuracy[0][-1]


def test_fine_tuning_does_not_depend_on_the_method(simulate: Simulate) -> None:
    """The pull is off: two clients' tuned nets from one server model agree between FedAvg and FedProx."""
    rows = []
    for method in ("fedavg-ft", "fedprox-ft"):
        run = simulate(method, play=False, **{"method.ft_scope": "full"})
        run.scorer.score(run.state, run.progress.clients, run.config.train.rounds)
        rows.append(run.federation.resident.row.clone())
    assert torch.equal(*rows) and not torch.equal(rows[0], run.federation.initial)
