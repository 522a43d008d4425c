"""What must hold of every method that is registered, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
import torch
from torch import Tensor

from fedpriv.aggregation import aggregations
from fedpriv.methods import methods
from fedpriv.methods.base import Method, ServerState
from fedpriv.objectives import objectives
from fedpriv.server import next_state
from fedpriv.server.merging import merge
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import STATISTIC, Sealed
from fedpriv.wire.coding import Upload
from tests.marks import FEW, federated, slow_but
from tests.simulation.faults import KILLED_AT, played_and_killed
from tests.simulation.processes import Process, die_at
from tests.simulation.small import FEW_STEPS, computed, facts, flags
from tests.simulation.small import simulation as prepare

METHODS = slow_but(FEW, sorted(methods()))
THREE_ROUNDS = {"train.rounds": 3, "eval.last": 2, **FEW_STEPS}
TINY = {"data.clients": 4, "data.limit": 100, "train.participation": 1.0, "model.projection": 8}


@pytest.mark.parametrize("method", FEW)
def test_killed_and_resumed_it_is_the_run_that_was_not(tmp_path: Path, reference: Callable[..., Path], method: str) -> None:
    folder = tmp_path / "run"
    command = ["train", *flags(method, **THREE_ROUNDS), "--run-dir", folder]
    for path in KILLED_AT:
        ended = Process(tmp_path, *command, sabotage=partial(die_at, "replace", 1, True, path)).wait()
        assert ended.code < 0, ended.err
        command = ["resume", folder]
    ended = Process(tmp_path, *command).wait()
    assert ended.code == 0 and facts(folder)["status"] == "finished", ended.err
    assert computed(folder) == computed(reference(method, **THREE_ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(methods().keys() - set(FEW)))
def test_what_any_method_keeps_is_resumed(tmp_path: Path, reference: Callable[..., Path], method: str) -> None:
    """As above; in this process, as only the files differ from method to method."""
    folder = played_and_killed(tmp_path / "run", method, **THREE_ROUNDS)
    assert computed(folder) == computed(reference(method, **THREE_ROUNDS))


@dataclass(frozen=True)
class Watched:
    """A run over, with what crossed its wire, and how many bytes the server and a client keep after each round."""

    simulation: Simulation
    down: list[Sealed]
    up: list[Sealed]
    kept: list[tuple[int, int]]


@pytest.fixture(scope="module", params=METHODS)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A run of each method, in which every client trains in every round."""
    run = prepare(tmp_path_factory.mktemp("watched") / "run", request.param, **TINY, **{"train.rounds": 4})
    watched = Watched(run, [], [], [])
    crossed = {"down": watched.down, "up": watched.up, "report": list[Sealed]()}
    run.taps.append(lambda way, sealed: crossed[way].append(sealed))
    run.start()
    for _ in run.rounds():
        own = [sum(tensor.nbytes for tensor in (run.stored(client) or {}).values()) for client in run.progress.clients]
        watched.kept.append((sum(tensor.nbytes for tensor in run.state.memory.values()), max(own, default=0)))
    return watched


def test_what_it_says_it_sends_and_keeps_is_what_it_sends_and_keeps(watched: Watched) -> None:
    simulation, down, up = watched.simulation, watched.down, watched.up
    kind, space = simulation.federation.method, simulation.federation.resident.space
    for sealed in up:
        assert {name for name in sealed.schema if name in space} == set(kind.shared_names)
        assert all(name in space or name.startswith(STATISTIC) for name in sealed.schema)
    sends = [part.sends for part in (kind, *kind.parts) if part.sends] if kind.shared else []
    sent = {name for sealed in (*down, *up) for name in sealed.schema if name.startswith(STATISTIC)}
    assert bool(sent) == bool(sends), (sent, sends)
    for sealed in up:  # no private tensor hides in a statistic of another name
        assert not any(name.endswith("/" + own) for name in sealed.schema for own in kind.private_names)
    own = {n for c in simulation.progress.clients for n in simulation.stored(c) or {}} - set(kind.private_names)
    declared = [part.keeps for part in (kind, *kind.parts) if part.keeps]
    assert bool(own) == bool(declared), (own, declared)


def test_the_state_between_rounds_does_not_grow(watched: Watched) -> None:
    assert len(watched.kept) == 4 and watched.kept[-1] == watched.kept[1]


@pytest.mark.parametrize("method", federated())
def test_steps_and_participants_are_what_the_config_says(simulate: Callable[..., Simulation], method: str) -> None:
    schedule = {"train.selection": "schedule", "train.schedule": [[0, 3], [1], [0, 2]], "train.rounds": 3}
    simulation = simulate(method, play=False, **{**TINY, "train.participation": None}, **schedule, **{"train.local_steps": 3})
    assert simulation.federation.method.phases(1)[-1].steps == 3
    assert [simulation.participants(round) for round in (1, 2, 3)] == schedule["train.schedule"]


@pytest.mark.parametrize("method", METHODS)
def test_everybody_dropped_leaves_the_model_as_it_was(simulate: Callable[..., Simulation], method: str) -> None:
    diverges = {"method.b" if method == "perfedavg" else "train.lr": 1e30, "train.local_epochs": 3, "train.on_nan": "drop"}
    simulation = simulate(method, play=False, **TINY, **diverges)
    before = simulation.state.row.clone()
    record = simulation.run_round()
    assert record["metrics"]["dropped"] == record["metrics"]["participants"] == (1 if methods()[method].pools else 4)
    assert torch.equal(simulation.state.row, before)


def place(objective: str, aggregation: str) -> int:
    return (sorted(objectives()).index(objective) + sorted(aggregations()).index(aggregation)) % 4


def reading(objective: str, aggregation: str) -> bool:
    """Whether one of them needs a statistic."""
    return bool(objectives()[objective].reads or aggregations()[aggregation].reads)


def plays(objective: str, aggregation: str) -> bool:
    """Whether this pair plays a round: each half with several of the other, all pairs that exchange statistics, and all with a
    net of their own (a predictor), whose model does not compare."""
    return (
        place(objective, aggregation) == 0
        or "predictor" in objectives()[objective].required_roles
        or reading(objective, aggregation)
    )


PAIRS = [
    (objective, aggregation)
    for objective in sorted(objectives())
    for aggregation in sorted(aggregations())
    if plays(objective, aggregation) or place(objective, aggregation) == 2
]
"""Those that play a round or are refused, and as many of the others."""


ONE_ROUND = {**TINY, "model.name": "mlp", "train.batch_size": 20, "train.rounds": 1, "train.momentum": 0.0}


@cache
def merged_of(aggregation: str) -> tuple[tuple[Upload, ...], Tensor]:
    """The uploads of a round of cross-entropy under an aggregation, and the row that they were merged into."""
    given: list[Upload] = []

    def noted(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        given.extend(uploads)
        return merge(method, server, uploads)

    with TemporaryDirectory() as folder, mock.patch.object(next_state, "merge", noted):
        run = prepare(Path(folder) / "run", "fedavg", **ONE_ROUND, objective="cross-entropy", aggregation=aggregation)
        run.start()
        run.run_round()
    return tuple(given), run.state.row


@pytest.mark.parametrize(("objective", "aggregation"), slow_but(["cross-entropy"], PAIRS))
def test_any_objective_goes_with_any_aggregation(simulate: Callable[..., Simulation], objective: str, aggregation: str) -> None:
    """Or is refused in a line that names both halves, because one needs what the other does not send.

    A pair that plays no round merges what clients of cross-entropy sent, and to the same row.
    """
    client, server = objectives()[objective], aggregations()[aggregation]
    # FedNova knows no step weight for momentum and a proximal term together, and says so (test_fednova.py).
    halves = {**ONE_ROUND, "objective": objective, "aggregation": aggregation}
    if client.reads <= server.writes and server.reads <= client.writes:
        simulation = simulate("fedavg", play=plays(objective, aggregation), **halves)
        assert torch.isfinite(simulation.state.row).all()
        if not plays(objective, aggregation):
            uploads, row = merged_of(aggregation)
            merged = merge(simulation.federation.method, simulation.state, uploads).row
            assert torch.equal(merged, row)
    else:
        with pytest.raises(Exception, match=r"needs .*, which .* does not send") as caught:
            simulate("fedavg", **halves)
        assert objective in str(caught.value) and aggregation in str(caught.value)
