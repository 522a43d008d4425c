"""Clients that are tested together have the accuracies that each has when tested alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedpriv.client import client as client_module
from fedpriv.client.client import Client
from fedpriv.config import load_config
from fedpriv.data.partitions.partition import Partition
from fedpriv.models.registry import Shape, register_model
from fedpriv.scores.predictions import weighted_mean
from fedpriv.server.clients import Evaluation
from fedpriv.simulation import local_tests
from fedpriv.simulation.local_tests import LocalTests
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder
from tests.marks import FEW, slow_but
from tests.simulation.small import QUICK, play
from tests.simulation.trial import in_float64, user_nets

SMALL = {
    "data.name": "digits",
    "data.limit": 500,
    "data.clients": 13,
    "data.partition.name": "dirichlet",  # clients differ in the number of their samples
    "data.partition.alpha": 0.3,
    "model.name": "normed",
    "model.projection": 8,
    "train.participation": 0.5,
    "train.rounds": 3,
    "train.batch_size": 16,
    "train.min_batch": 2,
    "train.lr": 0.02,
    "eval.every": 9,
    "eval.last": 1,
    "executor.name": "vectorized",
    "executor.group_size": 4,
    "tracking.uri": "none",
}
Make = Callable[..., Simulation]


@pytest.fixture(autouse=True)
def _net() -> Iterator[None]:
    with user_nets():

        @register_model("normed", input_shape=(1, 8, 8), classes=10, source="test")
        def normed(shape: Shape) -> tuple[nn.Module, int]:
            layers = [
                nn.Conv2d(1, 4, 3),
                nn.BatchNorm2d(4),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(36, 16),
                nn.ReLU(),
            ]
            return nn.Sequential(*layers), 16

        yield


@pytest.fixture
def played(tmp_path: Path) -> Make:
    """Two rounds in float64; three of the clients have no test samples."""

    def make(method: str, **overrides: Any) -> Simulation:
        federation = build(load_config(None, {**SMALL, "method.name": method, **QUICK.get(method, {}), **overrides}))
        in_float64(federation)
        data, pick = federation.data, federation.data.pick
        data.pick = lambda *of: pick(*of)._replace(inputs=pick(*of).inputs.double())  # type: ignore[method-assign, union-attr]
        chunks = data.chunks
        data.chunks = lambda *of: (chunk.double() for chunk in chunks(*of))  # type: ignore[method-assign, union-attr]
        for client in (0, 5, 12):
            data._indices["test"][client] = data._indices["test"][client][:0]
        simulation = Simulation(federation, RunFolder.create(federation.config, tmp_path / "run"), lambda text: None)
        simulation.start()
        for _ in range(2):
            simulation.run_round()
        return simulation

    return make


def scored(simulation: Simulation, together: bool) -> Evaluation:
    """What the scorer says of the last round, with all clients together or one after another."""
    choice = simulation.federation.choice
    assert choice is not None and choice.form is not None
    simulation.federation.choice = choice if together else None
    try:
        return simulation.scorer.score(simulation.state, simulation.progress.clients, 3)
    finally:
        simulation.federation.choice = choice


def assert_same(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    alone = scored(simulation, together=False)
    monkeypatch.delattr(LocalTests, "one_by_one")
    together = scored(simulation, together=True)
    assert alone.per_client is not None and together.per_client is not None
    assert together.per_client.keys() == alone.per_client.keys() >= {"accuracy", "balanced_accuracy", "f1_macro"}
    for name, values in alone.per_client.items():
        assert [value is None for value in values] == [client in (0, 5, 12) for client in range(13)], name
        assert together.per_client[name] == pytest.approx(values, abs=1e-12), name
        assert len(set(values)) > 3, name
    assert together.metrics == pytest.approx(alone.metrics, abs=1e-12)
    return together.per_client["accuracy"]


@pytest.mark.parametrize(
    ("method", "overrides"),
    slow_but(
        FEW,
        [
            ("mpfedcon", {}),
            ("fedper", {}),
            ("fedper", {"eval.state": "local_encoder"}),
            ("fedavg-ft", {}),
            ("fedavg-ft", {"data.augment": "crop_flip"}),
            ("perfedavg", {}),
            ("fedbn", {}),
            ("apfl", {}),
            ("ditto", {}),
            ("local", {}),
        ],
    ),
    ids=str,
)
def test_accuracies_are_those_of_clients_tested_alone(
    played: Make, monkeypatch: pytest.MonkeyPatch, method: str, overrides: dict[str, Any]
) -> None:
    assert_same(played(method, **overrides), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mpfedcon", "ditto"])
def test_in_pieces_they_are_the_same(played: Make, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    simulation = played(method)
    whole = scored(simulation, together=True)
    monkeypatch.setattr(local_tests, "MAX_HEADS", 3)
    monkeypatch.setattr(local_tests, "HEAD_BATCH", 2)
    for module in (local_tests, client_module):
        monkeypatch.setattr(module, "TEST_CHUNK", 5)
    assert scored(simulation, together=True) == whole


@pytest.mark.slow
def test_what_clients_keep_is_read_a_group_at_a_time(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first group has been tested, no other client's state has been read."""
    simulation, read = played("ditto"), list[int]()
    private, before = Client.private, list[int]()
    simulation.scorer.score(simulation.state, simulation.progress.clients, 3)
    models = simulation.scorer._models
    assert models is not None and len(models.clients) == 4
    original = models.run
    monkeypatch.setattr(models, "run", lambda functions: (before.append(len(read)), original(functions))[1])
    monkeypatch.setattr(Client, "private", lambda self, *of: (read.append(self.number), private(self, *of))[1])
    simulation.scorer.score(simulation.state, simulation.progress.clients, 3)
    assert before == [0, 4, 8] and len(read) == 10


@pytest.mark.slow
def test_a_client_whose_adaptation_diverges_is_tested_as_it_was(played: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = played("fedavg-ft", **{"train.on_nan": "drop"})
    data, train, diverged = simulation.federation.data, simulation.federation.data.train, list[str]()

    def poisoned(client: int) -> Any:
        split = train(client)
        return split._replace(inputs=split.inputs * float("nan")) if client == 3 else split

    monkeypatch.setattr(data, "train", poisoned)
    monkeypatch.setattr(simulation.scorer, "on_divergence", lambda client, round: diverged.append(f"client {client} diverged"))
    accuracies = assert_same(simulation, monkeypatch)
    assert len(diverged) == 2 and all("client 3 diverged" in line for line in diverged)
    simulation.federation.resident.row.copy_(simulation.state.row)
    split = data.split("test", 3)
    hits = simulation.federation.resident.forward(split.inputs, False).logits.argmax(1) == split.labels
    weights = data.weights("test", 3)
    assert accuracies[3] == pytest.approx(weighted_mean(hits, weights))


def test_clients_tested_on_all_of_their_classes_weigh_what_they_hold(tmp_path: Path) -> None:
    """Their test samples are others' as well; where each has a share of its own, these are the weights."""
    uneven = {"data.partition.name": "dirichlet", "data.partition.alpha": 0.1}
    for mode in ("all_of_class", "disjoint"):
        outcome = play(tmp_path / mode, "fedavg", **uneven, **{"data.partition.test": mode})
        record = RunFolder.open(tmp_path / mode).records()[-1]
        partition = Partition.load(tmp_path / mode / "partition.safetensors")
        held = partition.train if mode == "all_of_class" else partition.test
        pairs = zip(record["per_client"]["accuracy"], map(len, held), strict=True)
        known = [(accuracy, size) for accuracy, size in pairs if accuracy is not None]
        expected = sum(accuracy * size for accuracy, size in known) / sum(size for _, size in known)
        assert record["metrics"]["accuracy_weighted"] == pytest.approx(expected) and outcome.summary["rounds"] == 3
