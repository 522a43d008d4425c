"""Runs without labels on the command line, and `fedpriv probe`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from PIL import Image

from fedpriv.audit.run_audit import AuditOptions, audit_run
from fedpriv.config import DataConfig, load_config
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_data
from fedpriv.simulation import run
from fedpriv.storage.run_folder import RunFolder

Fedpriv = Callable[..., Result]
SMALL: dict[str, Any] = {
    "method.name": "fedavg",
    "data.limit": 700,
    "data.clients": 10,
    "train.rounds": 2,
    "train.participation": 0.3,
    "train.local_epochs": 1,
    "train.batch_size": 32,
    "model.projection": 16,
    "tracking.uri": "none",
}
SILENT: Any = (lambda federation, folder: None, lambda record: None, lambda text: None)


@pytest.fixture(scope="module")
def ssl_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("runs") / "ssl", **{"objective.name": "simclr", "data.clients": 20})


def play(folder: Path, **overrides: Any) -> Path:
    run.start(load_config(None, {**SMALL, **overrides, "run_dir": str(folder)}), folder.parent, *SILENT)
    return folder


def flags(**settings: Any) -> list[str]:
    return [part for key, value in {**SMALL, **settings}.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.mark.slow
def test_training_says_that_there_is_no_accuracy_and_how_to_get_one(fedpriv: Fedpriv) -> None:
    done = fedpriv("train", *flags(**{"objective.name": "barlow-twins"}), "--run-dir", "here/ssl")
    assert done.exit_code == 0, done.output
    assert "none: self-supervised, see fedpriv probe here/ssl" in done.output
    assert "nan" not in done.output.lower() and "None" not in done.output
    summary = RunFolder.open(Path("here/ssl")).summary()
    assert summary is not None and summary["accuracy"] is None and summary["accuracy_per_client"] == []
    assert not (Path("here/ssl/plots/per_client_accuracy.png")).exists()
    assert Path("here/ssl/plots/learning_curve.png").exists()


def test_records_have_a_loss_and_no_accuracy(ssl_run: Path) -> None:
    metrics = [record["metrics"] for record in RunFolder.open(ssl_run).records()[1:]]
    assert all(one["train_loss"] > 0 for one in metrics)
    assert not any("accuracy" in name or name == "test_loss" for one in metrics for name in one)


@pytest.mark.slow
def test_compare_says_so_too(fedpriv: Fedpriv, ssl_run: Path, tmp_path: Path) -> None:
    supervised = play(tmp_path / "supervised")
    done = fedpriv("compare", ssl_run, supervised, "--json")
    assert done.exit_code == 0, done.output
    assert "ssl: no accuracy, self-supervised; see fedpriv probe ssl" in done.output
    rows = json.loads(done.output.splitlines()[-1])["runs"]
    assert [row["accuracy"] is None for row in rows] == [True, False]


@pytest.mark.slow
def test_an_audit_of_a_run_without_labels(fedpriv: Fedpriv, ssl_run: Path) -> None:
    """What needs no label is tried, what does says so, and features are read by a probe."""
    assert fedpriv("probe", ssl_run, "--fraction", 1).exit_code == 0
    options = AuditOptions(messages=1, label_shadows=6, membership_shadows=4)
    found, _ = audit_run(ssl_run, options, lambda text: None)
    (target,) = found.images
    assert next(one.status.was_run for one in target.outcomes if one.attack == "analytic")
    reasons = {one.attack: one.status.why for one in target.outcomes if not one.status.was_run}
    assert "rank of at most" in reasons.pop("spear")  # it looks at no label, and there are too many samples
    assert all("labels" in reason or "behind one message" in reason for reason in reasons.values()), reasons
    assert "simclr contrasts samples with each other" in found.not_run["images"].text
    assert all(one.rule is None for one in found.labels)
    assert found.shadow_labels is not None and found.shadow_labels.shadows == 6
    made = [one.attack for one in found.membership if one.status.was_run]
    ways = {way for way in ("linear probe", "row distance") for name in made if way in name}
    assert ways == {"linear probe", "row distance"}
    assert all(any(way in name for way in ways) for name in made)
    assert found.cost.accuracy is None and found.cost.probes[0].accuracy > 0


@pytest.mark.slow
def test_probe_stores_its_results_and_says_the_same_again(fedpriv: Fedpriv, ssl_run: Path) -> None:
    first = fedpriv("probe", ssl_run, "--fraction", 1, "--fraction", 0.1, "--json")
    assert first.exit_code == 0, first.output
    said = json.loads(first.output.splitlines()[-1])
    assert [row["samples"] for row in said["results"]] == [700, 70] and said["test_samples"] == 359
    assert all(row["accuracy_as_is"] is None for row in said["results"]), "no BatchNorm in this net"
    stored = json.loads((ssl_run / "probe" / "digits-0.1.json").read_text())
    assert stored["accuracy"] == said["results"][1]["accuracy"]
    again = fedpriv("probe", ssl_run, "--fraction", 0.1, "--json")
    assert json.loads(again.output.splitlines()[-1])["results"] == said["results"][1:]


LEARNS = {
    "train.lr": 0.1,
    "train.rounds": 5,
    "train.local_epochs": 4,
    "train.batch_size": 20,
    "train.participation": 0.5,
    "data.partition.name": "iid",
}


@pytest.mark.slow
def test_probe_of_a_supervised_run_beats_that_of_random_weights(fedpriv: Fedpriv, tmp_path: Path) -> None:
    """One that learnt from labels has features that tell the classes apart; one that did not learn has fewer."""
    found = []
    for name, settings in {"trained": LEARNS, "not": {"train.lr": 1e-9}}.items():
        folder = play(tmp_path / name, **settings)
        done = fedpriv("probe", folder, "--fraction", 1, "--json")
        found.append(json.loads(done.output.splitlines()[-1])["results"][0]["accuracy"])
    assert found[0] > found[1] + 0.1, found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fraction", "0"), "above 0"),
        (("--fraction", "0.001"), "leaves no sample"),
        (("--features", "prepool", "--fraction", "1"), "need an encoder with average pooling"),
        (("--dataset", "digts"), "digits"),
    ],
)
def test_probe_refuses_what_cannot_be(fedpriv: Fedpriv, ssl_run: Path, arguments: tuple[str, ...], said: str) -> None:
    done = fedpriv("probe", ssl_run, *arguments)
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


@pytest.mark.slow
def test_probe_needs_a_finished_run_with_its_encoder_at_the_server(fedpriv: Fedpriv, tmp_path: Path) -> None:
    local = play(tmp_path / "local", **{"method.name": "local"})
    done = fedpriv("probe", local)
    assert done.exit_code == 2 and "method local leaves encoder.fc1.weight with the clients" in done.output
    (local / "summary.json").unlink()
    assert "is not finished" in fedpriv("probe", local).output


@pytest.mark.slow
def test_a_run_may_be_probed_while_it_goes(fedpriv: Fedpriv, tmp_path: Path) -> None:
    settings = {"objective.name": "simclr", "eval.probe": "linear", "eval.probe_fractions": [1.0, 0.1], "eval.last": 1}
    folder = play(tmp_path / "probed", **settings, **{"eval.every": 2})
    records = RunFolder.open(folder).records()
    probed = [{name for name in record["metrics"] if name.startswith("probe")} for record in records]
    assert probed == [set(), set(), {"probe/1", "probe/0.1"}]
    summary = RunFolder.open(folder).summary()
    assert summary is not None and summary["probe"] == {
        "1": records[-1]["metrics"]["probe/1"],
        "0.1": records[-1]["metrics"]["probe/0.1"],
    }
    done = fedpriv("probe", folder, "--fraction", 1, "--json")
    after = json.loads(done.output.splitlines()[-1])["results"][0]["accuracy"]
    assert after == summary["probe"]["1"], "the same protocol on the same weights"
    unprobed = play(tmp_path / "not", **{"objective.name": "simclr"})
    weights = [(one / "weights" / "server.safetensors").read_bytes() for one in (folder, unprobed)]
    assert weights[0] == weights[1], "looking changes nothing"


def test_a_probe_within_a_run_needs_the_encoder_and_the_test_set(fedpriv: Fedpriv) -> None:
    for settings, said in (
        ({"method.name": "fedper", "method.personal": ["encoder.fc2.*"]}, "leaves encoder.fc2.weight with the clients"),
        ({"eval.split": "validation", "data.validation_fraction": 0.2}, "does not go with eval.split=validation"),
    ):
        done = fedpriv("train", *flags(**{"eval.probe": "linear"}, **settings))
        assert done.exit_code == 2 and said in done.output


def test_another_data_set_is_scaled_as_the_runs_was(fedpriv: Fedpriv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[DataConfig]()

    def noted(data: DataConfig) -> Dataset:
        found.append(data)
        return load_data(data)

    monkeypatch.setattr("fedpriv.simulation.finished.probe.load_data", noted)
    raw = play(tmp_path / "raw", **{"data.pixels": "raw", "data.limit": 100})
    other = tmp_path / "other"
    other.mkdir()
    digits = load_data(DataConfig(name="digits"))
    for label, image in zip(digits.train_labels[:60].tolist(), digits.train_images[:60], strict=True):
        (folder := other / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{len(list(folder.iterdir()))}.png")
    assert fedpriv("probe", raw, "--dataset", other, "--fraction", 1).exit_code == 0
    assert [(one.name, one.pixels) for one in found] == [(str(other), "raw")]
