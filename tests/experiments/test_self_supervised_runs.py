"""Experiments whose runs have no labels: a probe in place of an accuracy, and no claim without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import BASE, play, write_result, write_yaml

from fedpriv.errors import UsageError
from fedpriv.experiments import Result, read
from fedpriv.experiments.claims import metric
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page.render import report
from fedpriv.experiments.results import collect
from fedpriv.experiments.runner import run

SSL = {"method": "fedavg", "objective": "simclr"}
PROBED = {**SSL, "eval": {"probe": "linear", "probe_fractions": [1.0, 0.1]}}
CLAIM = {"id": "C", "statement": "s"}


@pytest.mark.parametrize("name", ["accuracy", "worst_tenth", "global_accuracy", "early_accuracy", "test_loss_roughness"])
def test_a_claim_on_an_accuracy_that_is_not_there(tmp_path: Path, name: str) -> None:
    claim = {**CLAIM, "compare": ["a", "b"], "metric": name}
    file = write_yaml(tmp_path, runs={"a": PROBED, "b": {"method": "fedavg"}}, claims=[claim])
    with pytest.raises(UsageError, match=f"run a is self-supervised and has no {name}; use metric: probe"):
        read(file)


def test_a_claim_on_the_best_baseline_looks_at_all_runs(tmp_path: Path) -> None:
    claim = {**CLAIM, "compare": ["a", "best_baseline"]}
    file = write_yaml(
        tmp_path, runs={"a": {"method": "fedavg"}, "b": {"method": "fedper"}, "c": {**SSL, "method": "fedprox"}}, claims=[claim]
    )
    with pytest.raises(UsageError, match="run c is self-supervised"):
        read(file)


@pytest.mark.parametrize(("runs", "fraction"), [({"a": SSL}, 1.0), ({"a": PROBED}, 0.01)])
def test_a_claim_on_a_probe_that_is_not_made(tmp_path: Path, runs: dict[str, Any], fraction: float) -> None:
    claim = {**CLAIM, "of": "a", "metric": "probe", "above": 0.2, "fraction": fraction}
    with pytest.raises(UsageError, match=f"is not probed with {fraction:g} of the labels; eval: {{probe: linear"):
        read(write_yaml(tmp_path, runs=runs, claims=[claim]))


def test_a_target_needs_an_accuracy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no accuracy to reach"):
        read(write_yaml(tmp_path, runs={"a": SSL}, target="a"))
    assert read(write_yaml(tmp_path, runs={"fedavg": SSL})).target is None, "nor is it chosen unasked"


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An experiment of two self-supervised runs, one of them probed, run to its end; its YAML and its runs folder."""
    folder = tmp_path_factory.mktemp("ssl")
    base = {
        **BASE,
        "train": {"rounds": 2, "participation": 0.5, "local_epochs": 1, "batch_size": 256},
        "eval": {"every": 2, "last": 1},
    }
    claims = [
        {**CLAIM, "of": "simclr", "metric": "probe", "above": 0.05, "fraction": 0.1},
        {**CLAIM, "id": "D", "of": "barlow", "metric": "upload_bytes", "equals": 1, "within": 1e9},
    ]
    runs = {"simclr": PROBED, "barlow": {**SSL, "objective": "barlow-twins"}}
    file = write_yaml(folder / "made", base=base, runs=runs, claims=claims)
    experiment = read(file)
    for label in runs:
        play(experiment, folder / "runs", label)
    outcomes = run(experiment, folder / "runs")
    assert [outcome.state for outcome in outcomes] == ["collected", "collected"], [outcome.error for outcome in outcomes]
    return file, folder / "runs"


@pytest.mark.slow
def test_the_result_has_losses_and_probes(probed: tuple[Path, Path]) -> None:
    experiment = read(probed[0])
    with_probe, without = (Result.load(experiment.result_file(label, 0)) for label in ("simclr", "barlow"))
    assert with_probe.curve["round"] == [1, 2] == without.curve["round"]
    assert with_probe.curve["probe/1"][0] is None and 0 < with_probe.curve["probe/1"][1] <= 1
    assert all(loss > 0 for loss in with_probe.curve["train_loss"]) and "probe/1" not in without.curve
    assert with_probe.tested() == [] and with_probe.records() == []
    assert metric(with_probe, "probe", 0.1) == with_probe.summary["probe"]["0.1"]
    with pytest.raises(UsageError, match="has no probe with 1 of the labels"):
        metric(without, "probe")
    with pytest.raises(UsageError, match="barlow is self-supervised and has no accuracy"):
        metric(without, "accuracy")


def test_the_report_says_what_there_is(probed: tuple[Path, Path], tmp_path: Path) -> None:
    data = report(probed[0], tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "### Linear probe" in text and "10 % of the labels" in text and "### Accuracy" not in text
    assert "No accuracy: barlow (self-supervised, and not probed)." in text
    assert "nan" not in text and "None" not in text and "linear probe" in text
    assert data["experiments"][0]["plot"] is None
    rows = {row.label: row for row in Comparison.of(read(probed[0])).methods}
    assert rows["simclr"].mean is None and set(rows["simclr"].probe) == {"1", "0.1"} and rows["barlow"].probe == {}


def test_supervised_and_self_supervised_runs_stand_side_by_side(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, runs={"fedavg": {"method": "fedavg"}, "ssl": SSL})
    write_result(file, "fedavg", 0, {5: 0.5, 10: 0.6, 15: 0.7, 20: 0.8})
    stored = write_result(file, "ssl", 0, {5: 0.5, 20: 0.5})
    result = Result.load(stored)
    result.summary.update(accuracy=None, accuracy_per_client=[])
    result.summary["protocols"] = dict.fromkeys(result.summary["protocols"])
    result.curve["accuracy"] = [None, None]
    result.write(stored)
    report(file, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "| fedavg | **75.00** |" in text and "No accuracy: ssl" in text
    assert "not reached" in text, "and it never reaches the target"


def test_collecting_again_gives_the_same(probed: tuple[Path, Path]) -> None:
    from fedpriv.storage.run_folder import RunFolder

    experiment = read(probed[0])
    again = collect(RunFolder.open(experiment.run_dir(probed[1], "simclr", 0)), "simclr")
    assert again == Result.load(experiment.result_file("simclr", 0))
