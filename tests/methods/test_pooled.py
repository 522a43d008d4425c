"""pooled: the model of all samples in one place, tested by the clients of the federation, without a message."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedpriv.cli import main
from fedpriv.config import load_config
from fedpriv.deploy.deployable import deployable
from fedpriv.errors import UsageError
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from tests.methods.test_baselines import central_sgd
from tests.notes import notes
from tests.simulation.small import config, play, resume, simulation

Simulate = Callable[..., Simulation]
SAMPLE = {"privacy.level": "sample", "privacy.noise": 1.0}
TABLE: dict[str, Any] = {
    "data.label": "sick",
    "data.partition.name": "by_column",
    "data.partition.column": "hospital",
    "model.name": "linear",
}


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """A table of three hospitals, in which the hospital would tell the label."""
    rng = np.random.default_rng(0)
    lines = ["hospital,age,dose,sick"]
    for number in range(240):
        hospital = "abc"[number % 3]
        age, dose = rng.normal(50, 10), rng.normal()
        lines.append(f"{hospital},{age:.1f},{dose:.2f},{'yes' if age + 5 * dose > 50 else 'no'}")
    (file := tmp_path / "patients.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_it_is_central_sgd_on_the_samples_of_all_clients(simulate: Simulate) -> None:
    run = simulate("pooled", **{"method.epochs": 2, "train.participation": 1.0})
    places, clients = run.federation.places, run.federation.data
    held = np.concatenate(clients.partition.train)
    assert places.indices("train", 0).tolist() == sorted(held.tolist()) and places.nonempty == [0]
    run.federation.data = places  # whose client 0 the oracle trains
    assert torch.equal(run.state.row, central_sgd(run, 0, [(1, 2), (2, 2), (3, 2)]))


def test_it_is_fedavg_with_one_client_that_holds_all(simulate: Simulate) -> None:
    pooled = simulate("pooled", **{"method.epochs": 1, "train.participation": 1.0})
    one_client = {"data.clients": 1, "train.participation": 1.0, "data.partition.name": "iid", "train.local_epochs": 1}
    fedavg = simulate("fedavg", **one_client)
    assert pooled.federation.data.partition.distinct() == fedavg.federation.data.partition.distinct()
    assert torch.equal(pooled.state.row, fedavg.state.row)


def test_nothing_crosses_and_nothing_is_kept(tmp_path: Path) -> None:
    run, crossed = simulation(tmp_path / "run", "pooled", **{"wire.keep_payloads": "all"}), list[Any]()
    run.taps.append(lambda way, sealed: crossed.append((way, sealed)))
    run.start()
    assert [record["metrics"]["total_bytes_up"] + record["metrics"]["total_bytes_down"] for record in run.rounds()] == [0, 0, 0]
    assert not crossed and not list(run.folder.path.glob("payloads/*/*"))


def test_clients_of_the_federation_test_the_one_model(tmp_path: Path) -> None:
    shares: dict[str, Any] = {"data.partition.name": "dirichlet", "data.partition.test": "all_of_class"}
    outcome = play(tmp_path / "pooled", "pooled", **shares)
    federation, summary = build(config("fedavg", **shares)), outcome.summary
    assert summary is not None
    assert outcome.folder.facts["partition_hash"] == federation.data.partition.hash()
    run = simulation(tmp_path / "again", "pooled", **shares)
    run.start()
    *_, record = run.rounds()
    net = run.federation.resident.net
    run.federation.resident.row.copy_(run.state.row)
    net.eval()
    expected, weights = [], []
    for client in range(run.config.data.clients):
        data = run.federation.data
        inputs, labels = data.split("test", client)
        with torch.no_grad():
            correct = (net(inputs).logits.argmax(1) == labels).double()
        weight = data.weights("test", client)
        assert weight is not None
        expected.append(float((correct * weight).sum() / weight.sum()))
        weights.append(len(data.partition.train[client]))
    assert record["per_client"]["accuracy"] == pytest.approx(expected)
    assert record["metrics"]["accuracy"] == pytest.approx(np.mean(expected))
    assert record["metrics"]["accuracy_weighted"] == pytest.approx(np.average(expected, weights=weights))


@pytest.mark.parametrize(("share", "epochs"), [(1.0, 2), (0.3, 1), (0.5, 5), (0.1, 3)])
def test_a_sample_is_trained_on_as_often_as_by_local(simulate: Simulate, share: float, epochs: int) -> None:
    rounds = 7
    options = {"train.participation": share, "method.epochs": epochs, "train.rounds": rounds}
    run = simulate("pooled", play=False, **options)
    alone = simulate("local", play=False, **options)
    planned = [run.federation.method.phases(round)[0].epochs for round in range(1, rounds + 1)]
    by_local = sum(len(alone.participants(round)) * epochs for round in range(1, rounds + 1))
    assert sum(planned) == ceil(by_local / alone.config.data.clients) and max(planned) - min(planned) <= 1
    assert [run.participants(round) for round in range(1, rounds + 1)] == [[0] if epochs else [] for epochs in planned]


def test_steps_are_those_of_the_clients_of_a_round_together(simulate: Simulate) -> None:
    run = simulate("pooled", play=False, **{"train.participation": 0.3, "train.local_steps": 4})
    assert [(phase.epochs, phase.steps) for phase in run.federation.method.phases(1)] == [(0, 12)]


def test_the_clients_column_is_no_feature(patients: Path) -> None:
    table = {**TABLE, "data.name": str(patients), "tracking.uri": "none"}
    pooled, fedavg = (build(load_config(None, {**table, "method.name": method})) for method in ("pooled", "fedavg"))
    assert pooled.dataset.input_shape == fedavg.dataset.input_shape == (2,)
    assert pooled.dataset.hash == fedavg.dataset.hash and pooled.data.partition.hash() == fedavg.data.partition.hash()
    assert len(pooled.places.train(0).labels) == sum(fedavg.data.sizes.values())


def test_it_goes_on_after_an_interruption(tmp_path: Path) -> None:
    whole = simulation(tmp_path / "whole", "pooled")
    whole.start()
    list(whole.rounds())
    stopped = simulation(tmp_path / "stopped", "pooled")
    stopped.start()
    next(stopped.rounds())
    rest = Simulation(build(stopped.config), stopped.folder, lambda text: None)
    rest.restore()
    assert torch.equal(rest.state.row, stopped.state.row) and not torch.equal(rest.state.row, rest.federation.initial)
    list(rest.rounds())
    assert torch.equal(rest.state.row, whole.state.row)


def test_central_dp_spends_what_one_client_with_all_samples_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {"train.participation": 1.0, "train.rounds": 2, "privacy.delta": 1e-4, **SAMPLE}
    pooled = play(tmp_path / "pooled", "pooled", **options, **{"method.epochs": 1}).summary
    single = {"data.clients": 1, "data.partition.name": "iid", "train.local_epochs": 1}
    alone = play(tmp_path / "alone", "fedavg", **options, **single).summary
    assert pooled is not None and alone is not None
    statement = pooled["privacy"]
    assert statement["epsilon"] == pytest.approx(alone["privacy"]["epsilon"]) and statement["epsilon"] > 0.1
    assert len(statement["epsilon_per_client"]) == 10 and len(set(statement["epsilon_per_client"])) == 1
    assert "upload" not in statement["holds_if"] + " ".join(statement["not_covered"][:3])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"wire.secure_aggregation": True}, "sends nothing, so there is nothing to sum"),
        ({"privacy.level": "client", "privacy.noise": 1.0, "privacy.delta": 1e-3}, "use sample"),
        ({**SAMPLE, "privacy.canaries": 4}, "canaries"),
        ({"eval.fresh_head": 2}, "eval.fresh_head"),
        ({"eval.before_merge": True}, "sends none"),
        ({"train.selection": "schedule", "train.schedule": ((1, 2),) * 3}, "train.schedule"),
    ],
)
def test_what_needs_clients_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build(config("pooled", **options))


def test_a_method_that_would_send_nothing_of_a_net_is_refused(patients: Path) -> None:
    table = {**TABLE, "data.name": str(patients), "method.name": "fedper", "tracking.uri": "none"}
    with pytest.raises(UsageError, match="method fedper sends the encoder, where the net linear has no parameters"):
        build(load_config(None, table))


def test_a_deployment_refuses_it(tmp_path: Path) -> None:
    from fedpriv.deploy.server_run import start

    with pytest.raises(UsageError, match="all data in one place"):
        start(deployable(load_config(None, {"method.name": "pooled"})), tmp_path, *[None] * 5)  # type: ignore[arg-type]


def test_an_audit_says_that_nothing_is_sent(tmp_path: Path) -> None:
    play(tmp_path / "run", "pooled", **{"train.rounds": 1, "method.epochs": 1})
    refused = CliRunner().invoke(main, ["audit", str(tmp_path / "run")])
    assert refused.exit_code == 2 and "nothing is sent" in refused.stderr and "keep-payloads" not in refused.stderr


def test_its_model_is_the_server_s(tmp_path: Path) -> None:
    import fedpriv

    outcome = play(tmp_path / "run", "pooled", **{"method.epochs": 1})
    run = fedpriv.load(outcome.folder.path)
    assert {name.partition(".")[0] for name in run.weights()} == {"encoder", "projector", "head"}
    summary = run.summary
    assert summary is not None and summary["protocols"]["global_test"] is not None
    with pytest.raises(UsageError, match="finished"):
        resume(outcome.folder.path)


def test_it_predicts_for_new_rows(patients: Path, tmp_path: Path) -> None:
    import fedpriv

    options = {**TABLE, "data.name": str(patients), "tracking.uri": "none"}
    with notes() as lines:
        run = fedpriv.train(method="pooled", runs_dir=tmp_path, rounds=5, lr=0.1, **options)
    assert not [line for line in lines if "sends" in line]
    assert run.bytes_up == run.bytes_down == 0, "statistics of columns are no messages either"
    old, young = run.predict({"age": [80.0, 20.0], "dose": [2.0, -2.0]}).itertuples()
    assert (old.prediction, young.prediction) == ("yes", "no") and old.probability_yes > 0.9
