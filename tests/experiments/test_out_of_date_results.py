"""Results that were made of other samples, or by another version of a plug-in, than those at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_results import write_result, write_yaml

from fedpriv import plugins
from fedpriv.experiments import Result, read, run
from fedpriv.experiments.measures import Comparison
from fedpriv.storage.run_folder import RunFolder

RUNS: dict[str, dict[str, Any]] = {name: {"method": {"name": name}} for name in ("fedavg", "fedrep")}
REP = {5: 0.3, 10: 0.5, 19: 0.6, 20: 0.8}


def on_data(path: Path, of_run: Mapping[str, str]) -> None:
    """Results of runs ``label-sSEED`` on samples with these hashes."""
    for name, data in of_run.items():
        label, _, seed = name.rpartition("-s")
        file = write_result(path, label, int(seed), REP)
        replace(Result.load(file), data_hash=data).write(file)


def test_results_on_samples_corrected_since_are_left_out(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs={name: RUNS[name] for name in ("fedavg", "fedrep")}, seeds=[0, 1, 2])
    on_data(path, {f"{label}-s{seed}": "old" if seed == 0 else "new" for label in ("fedavg", "fedrep") for seed in range(3)})
    comparison = Comparison.of(read(path))
    assert comparison.complaints == [
        f"{label}-s0 is left out: most results are of other samples; remove the files that are out of date, and run again"
        for label in ("fedavg", "fedrep")
    ]
    assert all(set(of_label) == {1, 2} for of_label in comparison.results.values())


def test_of_two_versions_of_samples_with_equal_results_none_count(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs={"fedavg": RUNS["fedavg"]}, seeds=[0, 1, 2, 3])
    on_data(path, {"fedavg-s0": "old", "fedavg-s1": "old", "fedavg-s2": "new", "fedavg-s3": "new"})
    comparison = Comparison.of(read(path))
    assert not any(comparison.results.values()) and len(comparison.complaints) == 4
    on_data(path, {"fedavg-s0": "new"})
    assert set(Comparison.of(read(path)).results["fedavg"]) == {0, 2, 3}


def test_results_of_another_config_of_the_data_are_not_compared(tmp_path: Path) -> None:
    runs = {"fedavg": RUNS["fedavg"], "few": RUNS["fedavg"] | {"data": {"limit": 50}}, "fedrep": RUNS["fedrep"]}
    path = write_yaml(tmp_path, runs=runs)
    on_data(path, {"fedavg-s0": "all", "few-s0": "some", "fedrep-s0": "all"})
    assert Comparison.of(read(path)).complaints == ["seed 0: few has other data than the others, so they cannot be compared"]


def test_results_of_a_plug_in_corrected_since_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_loaded", {})  # no other test has this one
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugin = tmp_path / "corrected_since.py"
    plugin.write_text("FACTOR = 1\n")
    path = write_yaml(tmp_path, runs={"fedavg": RUNS["fedavg"] | {"plugins": [str(plugin)]}}, seeds=[0, 1, 2, 3])
    now = hashlib.sha256(plugin.read_bytes()).hexdigest()
    later = [{"after_round": 3, "plugins": {"corrected_since": "another"}}]
    versions: list[dict[str, Any]] = [
        {"plugins": {"corrected_since": "another"}}, {"plugins": {"corrected_since": now}},
        {"plugins": {"corrected_since": now}, "continued": later}, {},
    ]  # fmt: skip
    for seed, facts in enumerate(versions):
        file = write_result(path, "fedavg", seed, REP)
        replace(Result.load(file), **facts).write(file)
    comparison = Comparison.of(read(path))
    assert comparison.complaints == [
        f"fedavg-s{seed} is left out: it was made by another version of corrected_since.py" for seed in (0, 2)
    ]
    assert set(comparison.results["fedavg"]) == {1, 3}, "results of earlier versions do not say it"
    outcomes = run(read(path), tmp_path / "runs", workers=0)
    assert [outcome.state for outcome in outcomes] == ["left", "done", "left", "done"]
    folder = RunFolder(read(path).run_dir(tmp_path / "runs", "fedavg", 0))
    folder.path.mkdir(parents=True)
    folder.config_file.write_text(yaml.safe_dump(read(path).config("fedavg", 0).model_dump(mode="json")))
    folder.update_facts(plugins={"corrected_since": "another"})
    (refused,) = run(read(path), tmp_path / "runs", workers=0, seeds=[0])
    assert refused.state == "failed" and str(refused.error).endswith(
        "fedavg-s0: it was made by another version of corrected_since.py; move it away"
    ), refused
