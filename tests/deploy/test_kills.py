"""Random kills of the server and of clients, and a network that loses, doubles and delays: the run ends with the same bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.deploy.operation.members import Members
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from tests.deploy.apart import ALL_KEPT, agree, hashes, same_records
from tests.deploy.unreliable import KINDS, Unreliable, drawn, play_through
from tests.marks import slow_but
from tests.simulation.conftest import Reference
from tests.simulation.small import config

ROUNDS, CLIENTS = 3, 4
SETTINGS: dict[str, Any] = {
    "data.clients": CLIENTS,
    "data.limit": 80,
    "model.projection": 8,
    "train.participation": 1.0,
    "train.rounds": ROUNDS,
    "executor.name": "sequential",
    **ALL_KEPT,
}
FRAMES = range(CLIENTS, CLIENTS * (2 + 2 * ROUNDS))
"""Of a run without faults, after those in which clients describe their data: the terms, then a local update and a test in each
round."""
UPDATES = [at for at in FRAMES[CLIENTS:] if at // CLIENTS % 2 == 0]
KILLS = 10
METHODS = ("mpfedcon", "scaffold", "fedavg", "fedrep", "feddyn")
"""One for each seed; KILLS of them make 50."""


def same(tmp_path: Path, whole: Path, method: str, plan: dict[int, str]) -> Unreliable:
    """Play a run by a plan, and compare it with one without faults."""
    network, _ = play_through(tmp_path / "run", config(method, **SETTINGS), plan)
    agree(tmp_path / "run", whole)
    lines = RunFolder.open(tmp_path / "run").records()
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
    assert not any("missing" in line or "refused" in line for line in lines)
    return network


@pytest.mark.parametrize(("seed", "method"), slow_but([0], list(enumerate(METHODS))))
def test_kills_by_chance(tmp_path: Path, reference: Reference, seed: int, method: str) -> None:
    plan = {at + CLIENTS: kind for at, kind in drawn(seed, KILLS, len(FRAMES)).items()}
    network = same(tmp_path, reference(method, **SETTINGS), method, plan)
    roles = Counter(role for kind in network.happened for role, kinds in KINDS.items() if kind in kinds)
    assert len(roles) == 3 and roles.total() == KILLS


@pytest.mark.parametrize(("seed", "method"), slow_but([0], list(enumerate(METHODS))))
def test_kills_while_a_member_comes_and_another_goes(tmp_path: Path, seed: int, method: str) -> None:
    """The run ends like one with the same members and without kills: no round is lost, none is played twice."""

    def played(name: str, plan: dict[int, str]) -> tuple[Unreliable, Path]:
        members = Members(tmp_path / f"{name}.json", CLIENTS)

        def change(network: Unreliable, record: dict[str, Any]) -> None:
            if record["round"] == 1:
                members.add(members.next("late"))
                members.remove(members.named("client-3"))

        return play_through(tmp_path / name, config(method, **SETTINGS), plan, change, members)[0], tmp_path / name

    plan = {at + CLIENTS: kind for at, kind in drawn(100 + seed, KILLS, len(FRAMES) - 2 * ROUNDS).items()}
    _, quiet = played("quiet", {})
    network, killed = played("killed", plan)
    state = ("checkpoints/server-*.safetensors", "payloads/*/*", "weights/*")
    assert hashes(killed, *state) == hashes(quiet, *state)
    same_records(killed, quiet)
    lines = RunFolder.open(killed).records()
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1)) and "missing" not in lines[1]
    for line in lines[2:]:
        assert [entry["client"] for entry in line["missing"]] == [3] and "it was removed at" in line["missing"][0]["reason"]
    assert len(network.happened) == KILLS


@pytest.mark.parametrize("kind", slow_but(["sealing"], [kind for kinds in KINDS.values() for kind in kinds]))
def test_each_fault_in_each_place(tmp_path: Path, reference: Reference, kind: str) -> None:
    """In the first local update, in the last, and in local updates one after another."""
    plan = dict.fromkeys((UPDATES[0], UPDATES[1], UPDATES[CLIENTS + 2], UPDATES[-1]), kind)
    network = same(tmp_path, reference("mpfedcon", **SETTINGS), "mpfedcon", plan)
    assert network.happened == [kind] * len(plan)


def test_rounds_with_a_third_of_the_clients_away(tmp_path: Path) -> None:
    """Others each round: the server merges exactly those that answered, and the record names the rest."""
    settings = {**SETTINGS, "data.clients": 10, "train.rounds": 4}

    def gone(round: int) -> set[int]:
        return {(3 * round + step) % 10 for step in range(3)}

    def leave(network: Unreliable, record: dict[str, Any]) -> None:
        network.away = gone(record["round"] + 1)

    _, warnings = play_through(tmp_path / "run", config("fedavg", **settings), {}, leave)
    folder = RunFolder.open(tmp_path / "run")
    kept = PayloadStore.of(folder)
    for record in folder.records()[2:]:  # who is away is set after a round
        round = record["round"]
        here = sorted(set(range(10)) - gone(round))
        reason = "its node is not connected"
        assert record["missing"] == [{"client": client, "reason": reason} for client in sorted(gone(round))]
        assert record["metrics"]["missing"] == 3 and kept.clients(round) == here
        assert all(
            any(f"round {round}: client {client} " in line and reason in line for line in warnings) for client in gone(round)
        )
    for round in range(1, 4):
        uploads = [kept.upload(round, client) for client in kept.clients(round)]
        counts = torch.tensor([float(upload.num_examples or 0) for upload in uploads], dtype=torch.float64)
        after = kept.download(round + 1)
        assert after is not None
        for name, tensor in after.tensors().items():
            merged = sum(n * upload.tensors()[name].double() for n, upload in zip(counts, uploads, strict=True)) / counts.sum()
            assert torch.allclose(tensor.double(), merged, atol=1e-7), name
