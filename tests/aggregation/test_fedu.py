"""FedU's clients: whose projector they go on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.aggregation.fedu import movement
from fedpriv.errors import UsageError
from fedpriv.interfaces import LocalUpdate
from fedpriv.simulation.simulation import Simulation
from tests.aggregation.rounds import doubles, space_of

Simulate = Callable[..., Simulation]
ALL_TAKE_PART = {"train.participation": 1.0, "train.rounds": 2, "data.clients": 4, "model.projection": 16}


def starts(simulate: Simulate, aggregation: Any, **overrides: Any) -> tuple[Simulation, dict[tuple[int, int], Tensor]]:
    """A run, and the row that each (round, client) started from."""
    simulation = simulate("fedavg", play=False, aggregation=aggregation, **ALL_TAKE_PART, **overrides)
    seen: dict[tuple[int, int], Tensor] = {}
    server_part, begin = simulation.federation.method.aggregation, type(simulation.federation.method.aggregation).begin

    def watched(update: LocalUpdate) -> None:
        begin(server_part, update)
        assert torch.equal(update.start, update.row)
        seen[update.round, update.client] = update.row.clone()

    server_part.begin = watched  # type: ignore[method-assign]
    simulation.run_round()
    simulation.after_one = simulation.state.row.clone()  # type: ignore[attr-defined]
    simulation.kept_after_one = {c: simulation.stored(c) for c in range(4)}  # type: ignore[attr-defined]
    simulation.run_round()
    return simulation, seen


def test_a_client_that_moved_far_goes_on_with_its_own_projector(simulate: Simulate) -> None:
    simulation, seen = starts(simulate, {"name": "fedu", "fedu_threshold": 1e-6})
    space = simulation.federation.resident.space
    own_names, after = space.select(["projector"]), simulation.after_one  # type: ignore[attr-defined]
    for client in range(4):
        kept = simulation.kept_after_one[client]  # type: ignore[attr-defined]
        part = space.restricted(own_names)
        for name in space.names:
            expected = part.view(kept["fedu.own"], name) if name in own_names else space.view(after, name)
            assert torch.equal(space.view(seen[2, client], name), expected), name
        assert not torch.equal(space.view(seen[2, client], own_names[0]), space.view(after, own_names[0]))


def test_start_is_the_download_if_training_starts_elsewhere(simulate: Simulate) -> None:
    """Siamese training may go on from the client's own last model; its anchor is a copy of what was received."""
    objective = {"name": "siamese", "local_init": "persistent"}
    options = {**ALL_TAKE_PART, "model.predictor": 8, "aggregation": {"name": "fedu", "fedu_threshold": 1e-6}}
    simulation = simulate("fedavg", play=False, objective=objective, **options)
    simulation.run_round()
    after, begun = simulation.state.row.clone(), dict[int, Tensor]()
    server_part = simulation.federation.method.aggregation
    keep = server_part.keep
    server_part.keep = lambda update: (begun.update({update.client: update.start.clone()}), keep(update))[1]  # type: ignore[method-assign]
    simulation.run_round()
    space = simulation.federation.resident.space
    for name in space.select(["encoder", "head"]):
        assert all(torch.equal(space.view(start, name), space.view(after, name)) for start in begun.values()), name


def test_feddyns_anchor_is_where_the_client_began(simulate: Simulate) -> None:
    """Its objective looks at the model only after the client's own projector is in it."""
    objective = {"name": "feddyn", "alpha": 1.0}
    run = simulate(
        "fedavg", play=False, objective=objective, aggregation={"name": "fedu", "fedu_threshold": 1e-6}, **ALL_TAKE_PART
    )
    run.run_round()
    after, seen = run.state.row.clone(), list[int]()
    server_part = run.federation.method.aggregation
    keep = server_part.keep

    def watched(update: LocalUpdate) -> dict[str, Tensor]:
        assert not torch.equal(update.start, after)
        assert torch.equal(update.memo["feddyn.anchor"], update.start - update.private["feddyn.displacement"])
        seen.append(update.client)
        return keep(update)

    server_part.keep = watched  # type: ignore[method-assign]
    run.run_round()
    assert seen == [0, 1, 2, 3]


def test_a_client_that_moved_little_takes_the_global_one(simulate: Simulate) -> None:
    simulation, seen = starts(simulate, {"name": "fedu", "fedu_threshold": 1e6})
    assert all(torch.equal(seen[2, client], simulation.after_one) for client in range(4))  # type: ignore[attr-defined]
    plain = simulate("fedavg", **ALL_TAKE_PART)
    assert torch.equal(plain.state.row, simulation.state.row), "then it is FedAvg"


def test_fedu_threshold_is_strict_and_applies_to_each_client(simulate: Simulate) -> None:
    first, _ = starts(simulate, {"name": "fedu", "fedu_threshold": 1e6})
    moved = sorted(float(kept["fedu.moved"]) for kept in first.kept_after_one.values())  # type: ignore[attr-defined]
    assert moved[0] < moved[1]
    simulation, seen = starts(simulate, {"name": "fedu", "fedu_threshold": moved[1]})
    takes_global = [torch.equal(seen[2, c], simulation.after_one) for c in range(4)]  # type: ignore[attr-defined]
    assert sum(takes_global) == 1, "only the one below; the one at the threshold keeps its own"


def test_both_rules_of_the_server(simulate: Simulate) -> None:
    rows = [simulate("fedavg", aggregation=name, **ALL_TAKE_PART).state.row for name in ("fedu", "l-dawa-fedu")]
    assert not torch.equal(*rows)


def test_movement_is_the_mean_over_convolutions() -> None:
    space = space_of(
        ("encoder.conv1.weight", (1, 1, 1, 2), "weight"),
        ("encoder.conv2.weight", (1, 1, 1, 1), "weight"),
        ("encoder.fc.weight", (1, 2), "weight"),
        ("encoder.fc.bias", (1,), "bias"),
        ("projector.fc.weight", (1, 1), "weight"),
    )
    change = doubles([3, 4, -1, 100, 100, 100, 100])
    assert movement(space, torch.zeros_like(change), change) == pytest.approx((5 + 1) / 2)
    no_convolution = space.restricted(["encoder.fc.weight", "encoder.fc.bias"])
    assert movement(no_convolution, doubles([0, 0, 0]), doubles([3, 4, 9])) == pytest.approx(5)


def test_a_net_without_a_projector_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match="no projector to keep"):
        simulate("fedavg", play=False, aggregation="fedu", **{"model.projection": None})
