"""What must hold of every method that is registered, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.aggregation import aggregations
from fedpriv.methods import methods
from fedpriv.objectives import objectives
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import STATISTIC, Sealed
from tests.simulation.processes import Process, die_at
from tests.simulation.small import computed, facts, flags

METHODS = sorted(methods())
FOUR_ROUNDS = {"train.rounds": 4, "eval.last": 2}


@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_it_is_the_run_that_was_not(tmp_path: Path, reference: Callable[..., Path], method: str) -> None:
    folder = tmp_path / "run"
    command = ["train", *flags(method, **FOUR_ROUNDS), "--run-dir", folder]
    moments = [("round-000002", True), ("server-000003", True)]  # between two rounds, and within the end of one
    for path, after in moments:
        ended = Process(tmp_path, *command, sabotage=partial(die_at, "replace", 1, after, path)).wait()
        assert ended.code < 0, ended.err
        command = ["resume", folder]
    ended = Process(tmp_path, *command).wait()
    assert ended.code == 0 and facts(folder)["status"] == "finished", ended.err
    assert computed(folder) == computed(reference(method, **FOUR_ROUNDS))


def watched(simulation: Simulation) -> tuple[list[Sealed], list[Sealed]]:
    """What crosses the wire from now on: (down, up)."""
    down: list[Sealed] = []
    up: list[Sealed] = []
    simulation.taps.append(lambda way, sealed: (down if way == "down" else up).append(sealed))
    return down, up


@pytest.mark.parametrize("method", METHODS)
def test_what_it_says_it_sends_and_keeps_is_what_it_sends_and_keeps(simulate: Callable[..., Simulation], method: str) -> None:
    simulation = simulate(method, play=False, **{"model.projection": 16})
    down, up = watched(simulation)
    for _ in simulation.rounds():
        pass
    kind, space = simulation.federation.method, simulation.federation.resident.space
    for sealed in up:
        assert {name for name in sealed.schema if name in space} == set(kind.shared_names)
        assert all(name in space or name.startswith(STATISTIC) for name in sealed.schema)
    said = [part.sends for part in (kind, *kind.halves) if part.sends] if kind.shared else []
    sent = {name for sealed in (*down, *up) for name in sealed.schema if name.startswith(STATISTIC)}
    assert bool(sent) == bool(said), (sent, said)
    for sealed in up:  # no private tensor hides in a statistic of another name
        assert not any(name.endswith("/" + own) for name in sealed.schema for own in kind.private_names)
    own = {n for c in simulation.progress.clients for n in simulation.stored(c) or {}} - set(kind.private_names)
    declared = [part.keeps for part in (kind, *kind.halves) if part.keeps]
    assert bool(own) == bool(declared), (own, declared)


@pytest.mark.parametrize("method", METHODS)
def test_the_state_between_rounds_does_not_grow(simulate: Callable[..., Simulation], method: str) -> None:
    simulation = simulate(method, play=False, **{"model.projection": 16, "train.rounds": 6})
    sizes: list[tuple[int, int]] = []
    for _ in simulation.rounds():
        kept = [sum(t.nbytes for t in (simulation.stored(c) or {}).values()) for c in simulation.progress.clients]
        sizes.append((sum(t.nbytes for t in simulation.server.memory.values()), max(kept, default=0)))
    assert sizes[-1] == sizes[1], sizes


@pytest.mark.parametrize("method", METHODS)
def test_everybody_dropped_leaves_the_model_as_it_was(simulate: Callable[..., Simulation], method: str) -> None:
    simulation = simulate(method, play=False, **{"train.lr": 1e30, "train.on_nan": "drop", "train.rounds": 1})
    before = simulation.server.row.clone()
    record = simulation.run_round()
    if record["metrics"]["dropped"] == record["metrics"]["participants"]:
        assert torch.equal(simulation.server.row, before)


@pytest.mark.parametrize("aggregation", sorted(aggregations()))
@pytest.mark.parametrize("objective", sorted(objectives()))
def test_any_objective_goes_with_any_aggregation(
    simulate: Callable[..., Simulation], objective: str, aggregation: str, request: pytest.FixtureRequest
) -> None:
    """Or is refused in a line that names both halves, because one needs what the other does not send."""
    client, server = objectives()[objective], aggregations()[aggregation]
    # FedNova knows no step weight for momentum and a proximal term together, and says so (test_fednova.py).
    halves: dict[str, Any] = {"objective": objective, "aggregation": aggregation, "train.rounds": 1, "train.momentum": 0.0}
    if client.reads <= server.writes and server.reads <= client.writes:
        simulation = simulate("fedavg", **halves)
        assert torch.isfinite(simulation.server.row).all()
    else:
        with pytest.raises(Exception, match=r"needs .*, which .* does not send") as caught:
            simulate("fedavg", **halves)
        assert objective in str(caught.value) and aggregation in str(caught.value)
