"""A client whose training runs away: named, and either the end of the run or left out of the round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from fedpriv.client.local_update import ModelLocalUpdate
from tests.marks import slow_but
from tests.simulation.small import computed, facts, flags, play, rounds_recorded, simulation

Fedpriv = Callable[..., Result]
ALL = {"train.participation": 1.0}


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[Collection[int], Collection[int]], None]:
    """``poison(clients, rounds)``: in these rounds, these clients' loss is not a number."""

    def make(clients: Collection[int], rounds: Collection[int]) -> None:
        real = ModelLocalUpdate.train

        def train(update: ModelLocalUpdate, phase: Any, loss: Any, *how: Any) -> None:
            poisoned = update.client in clients and update.round in rounds
            real(update, phase, (lambda step: loss(step) * math.nan) if poisoned else loss, *how)

        monkeypatch.setattr(ModelLocalUpdate, "train", train)

    return make


@pytest.mark.slow
def test_by_default_the_run_stops_and_names_the_client_and_the_round(
    tmp_path: Path, poison: Any, fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch, reference: Callable[..., Path]
) -> None:
    with monkeypatch.context():
        poison([4], [2])
        result = fedpriv("train", *flags("mpfedcon", **ALL), "--run-dir", tmp_path / "run")
    assert result.exit_code == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "client 4" in last and "round 2" in last and "train.lr" in last and "on_nan=drop" in last
    assert "Traceback" not in result.stderr
    assert facts(tmp_path / "run")["status"] == "failed"
    assert rounds_recorded(tmp_path / "run") == [0, 1]
    monkeypatch.undo()  # the cause is gone: the run was not harmed
    assert fedpriv("resume", tmp_path / "run").exit_code == 0
    assert computed(tmp_path / "run") == computed(reference("mpfedcon", **ALL))


def test_under_client_level_dp_no_client_ends_the_run(tmp_path: Path, poison: Any) -> None:
    private = {"privacy.level": "client", "privacy.noise": 1.0, "privacy.delta": 1e-3, "train.rounds": 2, **ALL}
    poison([4], [1, 2])
    run = simulation(tmp_path / "run", "fedavg", **private)
    run.start()
    assert [record["metrics"]["dropped"] for record in run.rounds()] == [1, 1]
    assert torch.isfinite(run.state.row).all() and run.statement()["epsilon"] > 0


@pytest.mark.parametrize("lr", ["1e6", "1e30"])
def test_a_learning_rate_far_too_high_stops_the_run(tmp_path: Path, fedpriv: Fedpriv, lr: str) -> None:
    result = fedpriv("train", *flags("fedavg", **{"train.lr": float(lr)}), "--run-dir", tmp_path / "run")
    assert result.exit_code == 1
    assert "diverged in round 1" in result.stderr.splitlines()[-1]


def test_weights_that_overflow_in_the_very_last_step_are_not_sent(tmp_path: Path) -> None:
    """One step a round: the loss is taken before the step that ruins the weights, and is finite."""
    overrides = {"train.lr": 3e38, "train.weight_decay": 1e3, "train.batch_size": 1000, "train.on_nan": "drop"}
    run = simulation(tmp_path / "run", "fedavg", **overrides)
    sent: list[Any] = []
    run.taps.append(lambda way, sealed: sent.append(sealed) if way == "up" else None)
    run.start()
    records = list(run.rounds())
    assert [record["metrics"]["dropped"] for record in records] == [3, 3, 3]
    assert sent == []
    assert torch.isfinite(run.state.row).all()


def test_accuracies_of_a_model_whose_logits_are_not_finite_come_with_a_warning(tmp_path: Path) -> None:
    """Of a sample without finite logits, class 0 is predicted."""
    warned: list[str] = []
    run = simulation(tmp_path / "run", "fedavg", warned.append, **{"train.on_nan": "drop", "wire.check_downloads": False})
    run.start()
    assert not warned
    run.state.row.mul_(1e30)
    run.run_round()
    assert "round 1: the model's loss on the test set is not finite, so its accuracies say nothing" in warned


@pytest.mark.parametrize(
    ("method", "overrides"),
    slow_but(["fedavg"], [("mpfedcon", {}), ("mpfedcon", {"method.negative": "R2"}), ("fedavg", {})]),
    ids=["mpfedcon", "R2", "fedavg"],
)
def test_a_dropped_client_leaves_no_trace_in_the_round(
    tmp_path: Path, poison: Any, method: str, overrides: dict[str, Any]
) -> None:
    warnings: list[str] = []
    run = simulation(tmp_path / "run", method, warnings.append, **ALL, **overrides, **{"train.on_nan": "drop"})
    sent: list[Any] = []
    run.taps.append(lambda way, sealed: sent.append((sealed.round, sealed.client)) if way == "up" else None)
    poison([4], [2])
    run.start()
    run.run_round()
    before = {client: run.stored(client) for client in (3, 4)}
    metrics = run.run_round()["metrics"]
    after = {client: run.stored(client) for client in (3, 4)}
    assert (metrics["participants"], metrics["dropped"]) == (10, 1)
    assert [client for round, client in sent if round == 2] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert math.isfinite(metrics["train_loss"]) and torch.isfinite(run.state.row).all()
    assert len(warnings) == 1 and "client 4" in warnings[0] and "round 2" in warnings[0]
    if method == "mpfedcon":
        assert run.progress.clients == {client: 1 if client == 4 else 2 for client in range(10)}
        for name, tensor in before[4].items():  # type: ignore[union-attr]
            assert torch.equal(tensor, after[4][name])  # type: ignore[index]
        assert any(not torch.equal(t, after[3][n]) for n, t in before[3].items() if t.is_floating_point())  # type: ignore[union-attr, index]
    metrics = run.run_round()["metrics"]
    assert (metrics["participants"], metrics["dropped"]) == (10, 0)
    assert sent[-10:] == [(3, client) for client in range(10)]


def test_the_round_of_a_dropped_client_is_the_round_without_it(tmp_path: Path, poison: Any) -> None:
    """What the server makes of it is what it makes of the other uploads alone."""
    dropping = simulation(tmp_path / "dropping", "mpfedcon", **ALL, **{"train.on_nan": "drop"})
    without = simulation(tmp_path / "without", "mpfedcon", **ALL)
    real = without.participants
    without.participants = lambda round: [c for c in real(round) if c != 4]  # type: ignore[method-assign]
    for run in (dropping, without):
        run.start()
    poison([4], [1])
    dropping.run_round()
    without.run_round()
    assert torch.equal(dropping.state.row, without.state.row)
    assert all(torch.equal(table, without.state.memory[name]) for name, table in dropping.state.memory.items())


@pytest.mark.parametrize("method", ["mpfedcon", "fedavg", "local"])
def test_a_round_in_which_everybody_is_dropped_changes_nothing(tmp_path: Path, poison: Any, method: str) -> None:
    run = simulation(tmp_path / "run", method, **{"train.on_nan": "drop"})
    run.start()
    run.run_round()
    poison(range(10), [2])
    before, memory, clients = run.state.row.clone(), dict(run.state.memory), dict(run.progress.clients)
    metrics = run.run_round()["metrics"]
    assert metrics["dropped"] == metrics["participants"] == 3
    assert metrics["bytes_up"] < 1000 and "train_loss" not in metrics
    assert torch.equal(run.state.row, before)
    assert all(torch.equal(table, memory[name]) for name, table in run.state.memory.items())
    assert run.progress.clients == clients
    assert "train_loss" in run.run_round()["metrics"]


def test_a_run_in_which_everybody_is_always_dropped_still_ends(tmp_path: Path, fedpriv: Fedpriv) -> None:
    overrides = {"train.lr": 1e30, "train.on_nan": "drop", "train.rounds": 2}
    result = fedpriv("train", *flags("mpfedcon", **overrides), "--run-dir", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["bytes_up"] < 3000 and 0 <= summary["accuracy"] <= 1
    assert result.stderr.count("what it trained is left out") == 6


@pytest.mark.parametrize("policy", ["stop", "drop"])
def test_a_client_that_runs_away_while_it_is_adapted_for_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedpriv: Fedpriv, policy: str
) -> None:
    real = ModelLocalUpdate.train

    def train(update: ModelLocalUpdate, phase: Any, loss: Any, *how: Any) -> None:
        poisoned = update._purpose == "adapt" and update.client == 4
        real(update, phase, (lambda step: loss(step) * math.nan) if poisoned else loss, *how)

    monkeypatch.setattr(ModelLocalUpdate, "train", train)
    overrides = {"train.on_nan": policy, "train.rounds": 1, "method.ft_epochs": 1}
    result = fedpriv("train", *flags("fedavg-ft", **overrides), "--run-dir", tmp_path / "run", "--json")
    if policy == "stop":
        assert result.exit_code == 1
        assert "client 4" in result.stderr.splitlines()[-1]
        return
    assert result.exit_code == 0, result.output
    unadapted = play(tmp_path / "plain", "fedavg", **{"train.rounds": 1}).summary
    summary = json.loads(result.stdout.splitlines()[-1])
    assert unadapted is not None
    assert summary["accuracy_per_client"][4] == unadapted["accuracy_per_client"][4]
    assert summary["accuracy_per_client"] != unadapted["accuracy_per_client"]
