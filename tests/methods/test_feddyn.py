"""FedDyn: both parts against a slow version that keeps lambda and h, and what they reduce to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fedpriv.errors import UsageError
from fedpriv.methods.base import Method, ServerState
from fedpriv.server import next_state
from fedpriv.server.merging import merge
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire.coding import Upload
from tests.marks import quick_first, slow_but
from tests.methods.against_oracle import RAGGED, replay, same
from tests.oracles import global_baselines as oracles

Simulate = Callable[..., Simulation]
UNBOUNDED = {"train.clip_grad_norm": 1e9}
LEARNS = {"train.rounds": 3, "train.lr": 0.5, "train.local_epochs": 3, "data.limit": 400, "data.partition.name": "iid"}


def displacements(simulation: Simulation) -> torch.Tensor:
    """``(K, p)``: what every client keeps."""
    none = torch.zeros_like(simulation.state.row)
    kept = [simulation.stored(client) or {} for client in range(simulation.config.data.clients)]
    return torch.stack([state.get("feddyn.displacement", none) for state in kept])


@pytest.mark.parametrize(("alpha", "decay", "momentum"), quick_first([(0.1, 1.0, 0.0), (0.01, 1.0, 0.5), (0.1, 0.9, 0.0)]))
def test_four_rounds_equal_the_oracle(simulate: Simulate, alpha: float, decay: float, momentum: float) -> None:
    options = {"method.alpha": alpha, "method.h_decay": decay, "train.momentum": momentum, "train.rounds": 4}
    simulation = simulate("feddyn", **RAGGED, **UNBOUNDED, **options)
    slow = replay(simulation, oracles.feddyn, alpha=alpha, decay=decay, registered=10)
    same(simulation, slow.model)
    space = simulation.federation.resident.space
    drift = space.unpack(simulation.state.memory["feddyn.drift"])
    for name, h in slow.server["h"].items():
        torch.testing.assert_close(drift[name].double(), -h / alpha, rtol=1e-3, atol=1e-5)


def test_the_servers_drift_is_the_mean_of_what_all_clients_keep(simulate: Simulate) -> None:
    simulation = simulate("feddyn", play=False, **RAGGED)
    for _ in simulation.rounds():
        drift = simulation.state.memory["feddyn.drift"]
        torch.testing.assert_close(displacements(simulation).mean(0), drift, rtol=1e-4, atol=1e-6)
    assert bool(drift.any())


LOSSY: dict[str, dict[str, Any]] = {
    "mask": {"name": "mask", "last": 1},
    "clip": {"name": "clip", "norm": 0.1},
    "gaussian": {"name": "gaussian", "variance": 1e-3},
    "laplace": {"name": "laplace", "variance": 1e-3},
    "prune": {"name": "prune", "fraction": 0.1},
    "quantise": {"name": "quantise", "bits": 4},
    "cast": {"name": "cast"},
}


@pytest.mark.parametrize(
    ("names", "options"),
    slow_but(
        ["mask quantise", "clip"],
        [
            *((name, {}) for name in LOSSY),
            ("mask quantise", {}),
            ("clip", {"wire.secure_aggregation": True}),
            ("mask gaussian", {"wire.secure_aggregation": True}),
            ("prune", {"executor.name": "vectorized"}),
        ],
    ),
)
def test_the_drift_is_the_mean_of_what_was_sent(simulate: Simulate, names: str, options: dict[str, Any]) -> None:
    """Whatever a client's upload goes through, both parts add up the same."""
    wire = {"wire.transforms": [LOSSY[name] for name in names.split()], "method.alpha": 0.1}
    run = simulate("feddyn", play=False, **{**RAGGED, "data.limit": 200, "train.participation": 0.5, **wire, **options})
    for _ in run.rounds():
        drift = run.state.memory["feddyn.drift"]
        torch.testing.assert_close(displacements(run).mean(0), drift, rtol=1e-4, atol=1e-6)
    assert bool(drift.any())


def test_a_masked_head_is_not_regularised(simulate: Simulate) -> None:
    """Its client starts each local update from the server's value, so that a drift that it remembers would only grow."""
    masked = {"wire.transforms": [{"name": "mask", "last": 1}], "train.participation": 1.0}
    run = simulate("feddyn", **masked, **{"method.alpha": 0.1})
    space, kept = run.federation.resident.space, displacements(run)
    for name in space.names:
        assert bool(kept[:, space[name].start : space[name].stop].any()) is not name.startswith("head")


def test_the_plain_mean_is_tested_too(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server sends next is the mean of the uploads plus the drift; both are tested."""
    means: list[torch.Tensor] = []

    def noted(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        space = method.context.space
        means.append(
            torch.stack([space.pack(upload.tensors(set(space.names)), torch.empty_like(server.row)) for upload in uploads]).mean(
                0
            )
        )
        return merge(method, server, uploads)

    monkeypatch.setattr(next_state, "merge", noted)
    simulation = simulate("feddyn", **UNBOUNDED, **LEARNS, **{"method.test_mean": True})
    metrics, resident = simulation.folder.records()[-1]["metrics"], simulation.federation.resident
    accuracies = {}
    for name, row in (("accuracy_mean", means[-1]), ("accuracy", simulation.state.row)):
        resident.row.copy_(row)
        data = simulation.federation.data
        logits = torch.cat([resident.from_features(resident.features(chunk)).logits for chunk in data.chunks("server", 500)])
        accuracies[name] = float((logits.argmax(1) == data.labels("server")).double().mean())
        assert metrics[f"global_{name}"] == pytest.approx(accuracies[name], abs=1e-9), name
    assert accuracies["accuracy_mean"] != accuracies["accuracy"]
    plain = simulate("feddyn", **UNBOUNDED, **LEARNS)
    assert torch.equal(plain.state.row, simulation.state.row)
    assert "global_accuracy_mean" not in plain.folder.records()[-1]["metrics"]


def test_the_first_round_is_fedprox_locally(simulate: Simulate) -> None:
    shared = {"train.rounds": 1, **UNBOUNDED}
    dynamic = simulate("fedavg", **shared, objective={"name": "feddyn", "alpha": 0.3})
    proximal = simulate("fedprox", **shared, **{"method.mu": 0.3})
    assert torch.equal(dynamic.state.row, proximal.state.row)
    later = [simulate("fedavg", **{**shared, "train.rounds": 4}, objective={"name": n, k: 0.3}) for n, k in PAIR]
    assert not torch.equal(later[0].state.row, later[1].state.row), "from its second turn on a client remembers"


PAIR = [("feddyn", "alpha"), ("fedprox", "mu")]


def test_everybody_in_one_round_moves_twice_as_far(simulate: Simulate) -> None:
    """m = K and h = 0: the mean, and the mean's displacement once more."""
    shared = {"train.rounds": 1, "train.participation": 1.0, **UNBOUNDED}
    mean = simulate("fedprox", **shared, **{"method.mu": 0.1, "method.weights": "uniform"})
    moved = simulate("feddyn", **shared, **{"method.alpha": 0.1})
    start = mean.federation.initial
    torch.testing.assert_close(moved.state.row - start, 2 * (mean.state.row - start), rtol=1e-4, atol=1e-6)


def test_alpha_by_size_leaves_clients_of_one_size_alone(simulate: Simulate) -> None:
    even = {"data.partition.name": "iid", "data.limit": 400, "train.rounds": 2}
    plain, scaled = (simulate("feddyn", **even, **{"method.scale_alpha": flag, "method.alpha": 0.1}) for flag in (False, True))
    torch.testing.assert_close(plain.state.row, scaled.state.row, rtol=1e-5, atol=1e-7)
    plain, scaled = (simulate("feddyn", **RAGGED, **{"method.scale_alpha": flag, "method.alpha": 0.1}) for flag in (False, True))
    assert not torch.allclose(plain.state.row, scaled.state.row, rtol=1e-3)
    context = scaled.federation.method.context
    sizes = [scaled.federation.data.size(client) for client in scaled.federation.data.nonempty]
    assert context.mean_samples == pytest.approx(sum(sizes) / len(sizes)) and len(set(sizes)) > 1


def test_a_gradient_is_bounded_unless_the_config_says_otherwise(simulate: Simulate) -> None:
    assert simulate("feddyn", play=False).config.train.clip_grad_norm == 10.0
    assert simulate("feddyn", play=False, **UNBOUNDED).config.train.clip_grad_norm == 1e9
    assert simulate("fedprox", play=False).config.train.clip_grad_norm is None


def test_the_server_needs_clients_that_remember(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match="aggregation feddyn needs displacement, which objective cross-entropy does not send"):
        simulate("fedavg", play=False, aggregation="feddyn")
