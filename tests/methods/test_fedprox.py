"""FedProx and fine-tuning before the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedpriv.simulation.loop import Simulation
from tests.methods.against_oracle import RAGGED, replay, same
from tests.oracles import global_baselines as oracles

Simulate = Callable[..., Simulation]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_three_rounds_equal_the_oracle(simulate: Simulate, momentum: float) -> None:
    simulation = simulate("fedprox", **RAGGED, **{"method.mu": 0.5, "train.momentum": momentum})
    same(simulation, replay(simulation, oracles.fedprox, mu=0.5).model)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_a_pull_it_is_fedavg_bit_for_bit(simulate: Simulate, optimizer: str) -> None:
    shared = {"train.optimizer": optimizer, "train.lr": 0.01}
    plain, off, on = (
        simulate("fedavg", **shared),
        simulate("fedprox", **shared, **{"method.mu": 0}),
        simulate("fedprox", **shared),
    )
    assert torch.equal(plain.server.row, off.server.row)
    assert not torch.equal(plain.server.row, on.server.row)


def test_a_strong_pull_keeps_clients_near_the_received_model(simulate: Simulate) -> None:
    shared = {"train.rounds": 1, "train.momentum": 0.0, "train.local_epochs": 3}
    moved = []
    for mu in (0.0, 1.0, 10.0):
        run = simulate("fedprox", **shared, **{"method.mu": mu})
        moved.append(float((run.server.row - run.federation.initial).norm()))
    assert moved[0] > moved[1] > moved[2] > 0


def test_a_client_keeps_nothing_and_sends_only_its_model(simulate: Simulate) -> None:
    simulation = simulate("fedprox")
    assert simulation.progress.clients == {} and simulation.server.memory == {}


def test_what_does_not_come_from_the_server_is_not_pulled(simulate: Simulate) -> None:
    """A personal head has no global value: FedPer's is trained as without the term, while the encoder is held."""
    shared = {"train.rounds": 1, "train.local_steps": 1, "train.momentum": 0.0}
    plain, pulled = simulate("fedper", **shared), simulate("fedper", **shared, **{"objective": "fedprox"})
    assert torch.equal(plain.server.row, pulled.server.row), "the pull is zero in a first step"
    shared["train.local_steps"] = 2
    method = simulate("fedper", play=False, **shared, **{"objective": {"name": "fedprox", "mu": 3.0}}).federation.method
    received = {name: torch.zeros(()) for name in method.shared_names}

    class Turn:
        pass

    turn = Turn()
    turn.received, turn.memo, turn.start = received, {}, torch.zeros(method.context.space.size)  # type: ignore[attr-defined]
    method.objective.begin(turn)  # type: ignore[arg-type]
    strength = method.context.space.unpack(turn.memo["fedprox.strength"])  # type: ignore[attr-defined]
    assert all(bool((row == (3.0 if name.startswith("encoder") else 0.0)).all()) for name, row in strength.items())


def test_buffers_are_not_pulled(simulate: Simulate) -> None:
    options = {"model.name": "resnet18", "data.clients": 5, "train.participation": 0.2, "train.batch_size": 999}
    space_of = {}
    for method in ("fedavg", "fedprox"):
        run = simulate(method, play=False, **options)
        run.play_round()
        space, row = run.federation.resident.space, run.server.row
        space_of[method] = {e.name: space.view(row, e.name) for e in space.entries if e.kind == "buffer"}
    assert space_of["fedavg"], "there are running statistics"
    # One full-batch step: where the pull is still zero, the statistics are those of FedAvg.
    assert all(torch.equal(value, space_of["fedprox"][name]) for name, value in space_of["fedavg"].items())


@pytest.mark.parametrize("method", ["fedprox", "scaffold"])
def test_fine_tuning_is_without_corrections_and_changes_no_state(simulate: Simulate, method: str) -> None:
    plain, tuned = simulate(method), simulate(f"{method}-ft", **{"method.ft_epochs": 2})
    assert torch.equal(plain.server.row, tuned.server.row)
    for client in plain.progress.clients:
        before, after = plain._stored(client), tuned._stored(client)
        assert before is not None and after is not None and before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    accuracy = [[r["metrics"].get("accuracy") for r in s.folder.records()] for s in (plain, tuned)]
    assert accuracy[0][:-1] == accuracy[1][:-1] and accuracy[1][-1] > accuracy[0][-1]


def test_fine_tuning_of_the_same_model_is_the_same_whatever_trained_it(simulate: Simulate) -> None:
    """The pull is off: two clients' tuned nets from one server model agree between FedAvg and FedProx."""
    rows = []
    for method in ("fedavg-ft", "fedprox-ft"):
        run = simulate(method, play=False, **{"method.ft_scope": "full"})
        run.scorer.score(run.server, run._private, run.config.train.rounds)
        rows.append(run.federation.resident.row.clone())
    assert torch.equal(*rows) and not torch.equal(rows[0], run.federation.initial)


def test_one_client_with_one_sample_each(simulate: Simulate) -> None:
    options = {"data.clients": 3, "data.limit": 6, "data.partition.name": "iid", "train.participation": 1.0}
    run = simulate("fedprox", **options)
    assert torch.isfinite(run.server.row).all()
