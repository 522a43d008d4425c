"""Who takes part in a round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.errors import UsageError
from fedpriv.server.sampling import read_schedule
from fedpriv.simulation.simulation import Simulation
from tests.marks import federated
from tests.simulation.small import QUICK, computed, play

Simulate = Callable[..., Simulation]


def took_part(simulation: Simulation) -> list[list[int]]:
    """The uploads' senders, round by round."""
    sent: dict[int, list[int]] = {}
    simulation.taps.append(
        lambda way, sealed: sent.setdefault(sealed.round, []).append(sealed.client) if way == "up" else None  # type: ignore[arg-type]
    )
    for _ in simulation.rounds():
        pass
    return [sent[round] for round in sorted(sent)]


def test_everybody(simulate: Simulate) -> None:
    assert took_part(simulate("fedavg", play=False, **{"train.selection": "all"})) == [list(range(10))] * 3


def test_uniform_draws_the_share_anew_each_round(simulate: Simulate) -> None:
    rounds = took_part(simulate("fedavg", play=False, **{"train.rounds": 6}))
    assert all(len(set(clients)) == 3 for clients in rounds) and len({tuple(clients) for clients in rounds}) > 1


def test_as_the_schedule_says(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "schedule.txt"
    file.write_text("3 1 4\n\n1, 5, 9\n2\n")
    overrides = {"train.selection": "schedule", "train.schedule": str(file)}
    simulation = simulate("fedavg", play=False, **overrides)
    file.unlink()  # a run is a function of its config
    assert took_part(simulation) == [[1, 3, 4], [1, 5, 9], [2]]


def test_a_schedule_in_the_config_is_the_schedule_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "schedule.txt").write_text("0 1\n2 3\n4 1\n")
    for name, schedule in (("file", str(tmp_path / "schedule.txt")), ("inline", [[0, 1], [2, 3], [4, 1]])):
        play(tmp_path / name, "fedavg", **{"train.selection": "schedule", "train.schedule": schedule})
    assert computed(tmp_path / "file")["metrics"] == computed(tmp_path / "inline")["metrics"]
    assert (tmp_path / "file" / "config.yaml").read_text().count("schedule.txt") == 0
    summary = json.loads((tmp_path / "file" / "summary.json").read_text())
    assert summary["last_update_per_client"][:6] == [1, 3, 2, 2, 3, None] and summary["clients_never_trained"] == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n0 x\n", r":2: '0 x': expected client numbers from 0 to 9, each once"),
        ("0 1\n0 10\n", r":2: '0 10': expected"),
        ("0 0\n1 2\n", r":1: '0 0': expected"),
        ("0 1\n", r"1 lines for 2 rounds"),
    ],
)
def test_a_schedule_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "schedule.txt").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_schedule(tmp_path / "schedule.txt", clients=10, rounds=2)


@pytest.mark.slow
def test_methods_of_equal_config_train_the_same_clients_on_the_same_batches(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes part, and the order of a client's samples in its first epoch of a round: what pairs runs of equal seed."""
    batches, orders = ModelLocalUpdate._batches, dict[tuple[int, int], list[int]]()

    def noted(update: ModelLocalUpdate, columns: Any, *given: Any) -> Any:
        if update._purpose == "train":  # and not fine-tuned for a test
            orders.setdefault((update.round, update.client), columns[0].tolist())
        return batches(update, columns, *given)

    monkeypatch.setattr(ModelLocalUpdate, "_batches", noted)
    settings = {"data.limit": 60, "model.name": "mlp2", "train.rounds": 2, "eval.every": 9, "eval.last": 1}
    settings |= {"train.selection": "uniform"}  # some papers' methods suggest another
    chosen = {}
    for method in federated():
        simulate(method, **settings, **QUICK.get(method, {}))
        chosen[method] = dict(orders)
        orders.clear()
    local = chosen.pop("local")  # its clients take turns in rotation, as it has no rounds
    assert len(chosen["fedavg"]) == 6 and len({tuple(order) for order in chosen["fedavg"].values()}) == 6
    other = {
        method: sorted(set(chosen[method]) ^ set(chosen["fedavg"])) for method in chosen if chosen[method] != chosen["fedavg"]
    }
    assert other == {}
    assert all(chosen["fedavg"].get(update, order) == order for update, order in local.items())


def test_updates_whose_uploads_do_not_count_are_no_training(tmp_path: Path) -> None:
    refused = {"train.max_update_norm": 1e-6, "train.rounds": 2, "train.participation": 1.0, "data.clients": 3}
    play(tmp_path / "run", "fedavg", **refused)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["answers_refused"] == summary["local_updates"] == 6
    assert summary["clients_never_trained"] == 3 and summary["last_update_per_client"] == [None, None, None]


def test_updates_that_diverged_are_no_training(tmp_path: Path) -> None:
    lost = {"train.lr": 1e30, "train.on_nan": "drop", "train.rounds": 2, "train.participation": 1.0, "data.clients": 3}
    play(tmp_path / "run", "fedper", **lost)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["local_updates_dropped"] == summary["local_updates"] == 6
    assert summary["clients_never_trained"] == 3 and summary["last_update_per_client"] == [None, None, None]
