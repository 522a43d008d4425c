"""What the tables of a report say of seeds, of the data that are scored, and of numbers near a claim's bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import FIVE, judged, write_result, write_yaml

from fedpriv.experiments import Result, read
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page import tables, verdicts


def accuracy_table(
    folder: Path, accuracies: Mapping[str, Mapping[int, float]], runs: Mapping[str, Any] = FIVE, **settings: Any
) -> list[str]:
    path = write_yaml(folder, runs={label: runs[label] for label in accuracies}, seeds=[0, 1, 2])
    for label, by_seed in accuracies.items():
        for seed, value in by_seed.items():
            write_result(path, label, seed, {19: value, 20: value}, **settings)
    return tables.accuracy(Comparison.of(read(path)))


def row(table: str, label: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| {label}"))


def test_missing_seeds_have_a_dash_and_no_one_wins_without_them(tmp_path: Path) -> None:
    accuracies = {"fedavg": dict.fromkeys(range(3), 0.5), "local": dict.fromkeys(range(3), 0.4), "fedrep": {0: 0.5, 2: 0.51}}
    _, table, *texts = accuracy_table(tmp_path, accuracies)
    assert "| test accuracy | sd over seeds | seeds 0, 1, 2 |" in table
    assert row(table, "fedavg").startswith("| fedavg | **50.00** | 0.00 | 50.00, 50.00, 50.00 |")
    assert row(table, "fedrep").startswith("| fedrep | 50.50 | 0.71 | 50.00, –, 51.00 |")
    assert row(table, "fedrep").endswith("| 0, –, 2 |") and "| clients that never took part |" in table
    assert "Bold: the best of those that have every seed." in texts
    _, table, *texts = accuracy_table(tmp_path / "apart", {"fedavg": {0: 0.5}, "fedrep": {1: 0.6}})
    assert "**" not in table and "None is bold: they have other seeds, or are scored on other data." in texts


def test_runs_are_compared_by_the_score_that_they_are_ranked_by(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs={label: FIVE[label] for label in ("local", "fedavg")})
    for label, (accuracy, ranked) in {"local": (0.9, 0.5), "fedavg": (0.8, 0.7)}.items():
        file = write_result(path, label, 0, {19: accuracy, 20: accuracy})
        result = Result.load(file)
        summary = result.summary | {"ranked": {"metric": "balanced_accuracy", "mean": ranked}}
        replace(result, summary=summary).write(file)
    table = tables.accuracy(Comparison.of(read(path)))[1]
    assert "| method | balanced accuracy | test accuracy |" in table
    assert row(table, "fedavg").startswith("| fedavg | **70.0%** | 80.00 |") and row(table, "local").startswith(
        "| local | 50.0% | 90.00"
    )


def test_seeds_are_named_over_claims(tmp_path: Path) -> None:
    claims = [{"id": "C", "statement": "s", "of": label, "above": 0.1} for label in ("fedavg", "fedrep")]
    path = write_yaml(tmp_path, runs=FIVE, seeds=[0, 1, 2], claims=claims)
    for seed in (0, 1, 2):
        write_result(path, "fedavg", seed, {20: 0.5})
    write_result(path, "fedrep", 1, {20: 0.6})
    table = verdicts.claims(Comparison.of(read(path)))[1]
    assert "| ours | seeds 0, 1, 2 | 95 % interval |" in table and "| –, 60.0 %, – |" in table


def test_updates_that_diverged_and_commits_that_went_on_are_told(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs={"fedavg": FIVE["fedavg"]}, seeds=[0, 1])
    for seed, lost in ((0, 0), (1, 110)):
        file = write_result(path, "fedavg", seed, {19: 0.5, 20: 0.5})
        result = Result.load(file)
        later = [{"after_round": 3, "versions": {}}, {"after_round": 9, "git_commit": "b" * 40}] if lost else []
        counted = result.summary | {"local_updates": 200, "local_updates_dropped": lost}
        replace(result, summary=counted, git_commit="a" * 40, continued=later).write(file)
    comparison = Comparison.of(read(path))
    assert "Local trainings that diverged, and were left out: fedavg 110 of 200 (seed 1)." in tables.accuracy(comparison)
    assert f"commit {'a' * 12}, {'b' * 12}; device" in tables.provenance(comparison)[0]


def test_accuracy_on_validation_data_is_called_so(tmp_path: Path) -> None:
    heading, table, text, *_ = accuracy_table(tmp_path, {"fedavg": {0: 0.5}}, split="validation")
    assert heading == "### Accuracy on validation data" and "| method | validation accuracy |" in table
    assert "each on its own validation data" in text
    path = write_yaml(tmp_path / "mixed", runs={label: FIVE[label] for label in ("fedavg", "fedrep")})
    write_result(path, "fedavg", 0, {20: 0.5}, split="validation")
    write_result(path, "fedrep", 0, {20: 0.6})
    heading, table, text, *_ = tables.accuracy(Comparison.of(read(path)))
    assert heading == "### Accuracy" and "**" not in table
    assert row(table, "fedavg").startswith("| fedavg (validation) | 50.00 |") and "| fedrep (test) | 60.00 |" in table


def test_fewer_rounds_are_no_fine_tuning(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs={label: FIVE[label] for label in ("fedavg", "fedavg-ft", "fedrep")})
    for label in ("fedavg", "fedavg-ft", "fedrep"):
        stored = write_result(path, label, 0, {19: 0.5, 20: 0.5})
        result = Result.load(stored)
        if label == "fedrep":
            replace(result, summary=result.summary | {"averaged_rounds": 1}).write(stored)
    _, table, *texts = tables.accuracy(Comparison.of(read(path)))
    assert "| fedavg |" in table and "| fedavg-ft ¹ |" in table and "| fedrep ² |" in table
    assert "² Mean over fewer of the last rounds: 1 (fedrep)." in texts and any("¹ Fine-tuned" in text for text in texts)


@pytest.mark.parametrize(
    ("claim", "ours", "shown", "interval"),
    [
        ({"compare": ["fedrep", "local"], "margin": 0.0165}, [0.516497] * 3, "+1.6497", "[+1.6497, +1.6497]"),
        ({"compare": ["fedrep", "local"], "margin": 0.0165}, [0.5165] * 3, "+1.65", "[+1.65, +1.65]"),
        ({"compare": ["fedrep", "local"]}, [0.5, 0.5, 0.5], "+0.00", "[+0.00, +0.00]"),
        ({"compare": ["fedrep", "local"]}, [0.50002] * 3, "+0.002", "[+0.002, +0.002]"),
        ({"of": "fedrep", "below": 0.7}, [0.6999] * 3, "69.99 %", "[69.99 %, 69.99 %]"),
        ({"of": "fedrep", "above": 0.7}, [0.72] * 3, "72.0 %", "[72.0 %, 72.0 %]"),
    ],
)
def test_no_number_is_rounded_onto_the_bound_that_it_misses(
    tmp_path: Path, claim: dict[str, Any], ours: Sequence[float], shown: str, interval: str
) -> None:
    judged(tmp_path, claim, {"local": [0.5] * 3, "fedrep": ours})
    cells = row(verdicts.claims(Comparison.of(read(tmp_path / "tiny.yaml")))[1], "C")
    assert f"| **{shown}** " in cells and f"| {interval} |" in cells
    assert f"| {shown}, {shown}, {shown} |" in cells


def test_a_speed_up_is_told_in_the_order_of_its_runs(tmp_path: Path) -> None:
    claim = {"id": "C6", "statement": "s", "compare": ["fedrep", "fedavg"], "metric": "speed_up", "above": 1.5}
    path = write_yaml(tmp_path, runs=FIVE, claims=[claim])
    write_result(path, "fedavg", 0, {10: 0.1, 20: 0.5})
    write_result(path, "fedrep", 0, {10: 0.5, 20: 0.5})
    table = verdicts.claims(Comparison.of(read(path)))[1]
    assert "**2.00×** as fast as fedavg, in rounds until fedavg's final accuracy (fedrep)" in table


def test_bytes_that_were_not_counted_are_not_part_of_the_mean(tmp_path: Path) -> None:
    """Earlier versions counted nothing of clients that send a report and no weights."""
    path = write_yaml(tmp_path, runs={"local": FIVE["local"]}, seeds=[0, 1])
    for seed, size in ((0, 0), (1, 400)):
        write_result(path, "local", seed, {19: 0.5, 20: 0.5}, round_bytes=size)
    (method,) = Comparison.of(read(path)).methods
    assert (method.bytes_per_upload, method.bytes_per_round, method.bytes_up) == (100, 400, 4000)
