"""What federation gains over its baselines, by hand and from folders of runs; and why runs cannot be compared."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from scipy import stats

import fedpriv
from fedpriv.api.comparison.comparing import gains_between
from fedpriv.api.comparison.gains import Difference, FinishedRun, gains_of
from fedpriv.api.comparison.side_by_side import Comparison
from fedpriv.cli import main
from fedpriv.evaluation.protocols import ScoreSummary
from tests.tracking.fake_runs import make_run


def finished(label: str, seed: int, accuracies: list[float | None], method: str = "", **config: str) -> FinishedRun:
    return FinishedRun(label, method or label, ("data", "partition", seed), accuracies, config)


def test_a_single_run_has_an_interval_over_its_clients() -> None:
    ours, alone = [0.9, 0.8, 0.7, None], [0.6, 0.7, 0.6, 0.5]
    (gain,) = gains_of([finished("fedavg", 0, ours), finished("local", 0, [*alone])])
    differences = [0.3, 0.1, 0.1]
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    paired = gain.paired
    assert (paired.mean, paired.low, paired.high) == pytest.approx((sum(differences) / 3, expected.low, expected.high))
    assert (paired.over, paired.count, gain.baseline) == ("clients", 3, "local")
    assert str(gain).startswith("fedavg over local: +16.7 points (95 %: ") and "over 3 clients" in str(gain)


def test_several_seeds_have_an_interval_over_the_seeds_that_both_have() -> None:
    runs = [finished("fedavg", seed, [0.5 + 0.1 * seed, 0.7]) for seed in range(4)]
    runs += [finished("pooled", seed, [0.8, 0.8]) for seed in range(3)] + [finished("pooled", 9, [0.1, 0.1])]
    (gain,) = gains_of(runs)
    means = [-0.2, -0.15, -0.1]
    expected = stats.ttest_rel([0.6, 0.65, 0.7], [0.8] * 3).confidence_interval(0.95)
    assert (gain.paired.mean, gain.paired.low, gain.paired.high) == pytest.approx((sum(means) / 3, expected.low, expected.high))
    assert (gain.paired.over, gain.paired.count) == ("runs", 3) and str(gain).startswith("fedavg against pooled: -15.0 points")
    assert gain.unpaired == 2 and "over 3 runs; 2 runs without a partner left out)" in str(gain)


def test_runs_with_other_clients_are_not_compared_and_repeats_count_once() -> None:
    other = FinishedRun("local", "local", ("data", "another partition", 0), [0.1], {})
    assert not list(gains_of([finished("fedavg", 0, [0.5]), other]))
    twice = [finished("fedavg", 0, [0.5]), finished("fedavg", 0, [0.5]), finished("local", 0, [0.25])]
    (gain,) = gains_of(twice)
    assert gain.paired == Difference(0.25, None, None, "clients", 1) and "without an interval" in str(gain)
    assert not list(gains_of([finished("local", 0, [0.5]), finished("pooled", 0, [0.5])])), "both are baselines"


def test_it_says_in_what_the_runs_also_differ() -> None:
    fedavg = finished("fedavg", 0, [0.5, 0.6], **{"train.lr": "0.1", "method.mu": "1"})
    local = finished("local", 0, [0.5, 0.5], **{"train.lr": "0.01", "method.epochs": "5"})
    (gain,) = gains_of([fedavg, local])
    assert gain.differ == ("train.lr",) and "they also differ in train.lr" in str(gain)


def folder(path: Path, method: str, accuracies: list[float], seed: int = 0, **facts: Any) -> Path:
    run = make_run(path, f"{method}-{seed}", method=method, seed=seed, clients=len(accuracies))
    summary = json.loads((run / "summary.json").read_text())
    mean, zeros = sum(accuracies) / len(accuracies), dict.fromkeys(field.name for field in fields(ScoreSummary))
    brier = [1 - accuracy for accuracy in accuracies]
    scores = {"accuracy": {"mean": mean, "per_client": accuracies}, "brier": {"mean": 1 - mean, "per_client": brier}}
    summary |= {"accuracy": mean, "accuracy_per_client": accuracies, "averaged_rounds": 1}
    summary["scores"] = {name: zeros | values for name, values in scores.items()}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | facts))
    return run


def test_the_table_and_the_command_have_the_same_numbers(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path, "local", [0.5, 0.6]),
        folder(tmp_path, "pooled", [0.9, 0.9]),
        folder(tmp_path, "fedavg", [0.7, 0.7]),
    ]
    table = fedpriv.compare(runs)
    assert table.over_local["fedavg-0"] == pytest.approx(0.15) and table.over_pooled["fedavg-0"] == pytest.approx(-0.2)
    half = stats.t.ppf(0.975, 1) * 0.05  # of 0.2 and 0.1
    assert table.over_local_low["fedavg-0"] == pytest.approx(0.15 - half)
    assert math.isnan(table.over_local["local-0"]) and table.over_pooled["local-0"] == pytest.approx(-0.35)
    gains = fedpriv.gains(runs).set_index("baseline")
    assert gains.difference["local"] == pytest.approx(0.15) and gains.low["local"] == table.over_local_low["fedavg-0"]
    shown = CliRunner().invoke(main, ["compare", *map(str, runs), "--output", str(tmp_path / "out.png"), "--json"])
    assert "fedavg over local: +15.0 points" in shown.stderr and "fedavg against pooled: -20.0 points" in shown.stderr
    printed = json.loads(shown.stdout.splitlines()[-1])["gains"]
    assert [gain["difference"] for gain in printed] == list(fedpriv.gains(runs).difference)


def test_runs_are_compared_by_the_score_that_they_are_ranked_by(tmp_path: Path) -> None:
    runs = [folder(tmp_path, method, values) for method, values in (("fedavg", [0.7, 0.9]), ("local", [0.5, 0.9]))]
    runs.append(folder(tmp_path / "other", "local", [0.6, 0.9]))
    for run in runs:
        config = yaml.safe_load((run / "config.yaml").read_text()) | {"eval": {"metric": "brier"}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    gains = fedpriv.gains(runs[:2])
    assert list(gains.score) == ["brier"] and gains.difference[0] == pytest.approx(-0.1)
    assert fedpriv.compare(runs).over_local["fedavg-0"] == pytest.approx(-0.05), "of an error, the best is the least"
    shown = CliRunner().invoke(main, ["compare", *map(str, runs[:2]), "--output", str(tmp_path / "out.png")])
    assert "fedavg over local: -0.100 Brier score, of which less is better (95 %: " in shown.stdout


def test_it_says_if_the_baseline_trains_for_other_epochs(tmp_path: Path) -> None:
    def differing(of_local: dict[str, int], **train: int) -> dict[str, tuple[tuple[str, ...], tuple[str, str]]]:
        runs = [folder(tmp_path / f"{of_local}{train}", method, [0.5, 0.6]) for method in ("local", "fedavg", "fedrep")]
        for run, options in zip(runs, (of_local, {}, {"head_epochs": 10}), strict=True):
            config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
            config["method"] = {"name": config["method"]["name"], **options}
            config["train"] |= train
            (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        gains = gains_between(Comparison(runs))
        lines.extend(map(str, gains))
        return {gain.label: (gain.differ, gain.trained) for gain in gains}

    lines: list[str] = []
    key = ("method.epochs",)
    default = {"fedavg": (key, ("5 epochs", "15 epochs")), "fedrep": ((), ("15 epochs", "15 epochs"))}
    assert differing({}) == default, "10 more at the baseline, which are those of the other's head"
    assert differing({"epochs": 1})["fedavg"] == (key, ("5 epochs", "1 epoch"))
    assert lines[-2].endswith("; local trained 1 epoch a round, fedavg 5 epochs (method.epochs)"), "train.local_epochs is equal"
    assert differing({"epochs": 5})["fedavg"] == ((), ("5 epochs", "5 epochs"))
    in_steps = differing({}, local_steps=20)
    assert in_steps["fedavg"] == ((), ("20 steps", "20 steps")) and in_steps["fedrep"][1][0] == "10 epochs and 20 steps"


def warnings_of(tmp_path: Path, *runs: Path) -> str:
    return CliRunner().invoke(main, ["compare", *map(str, runs), "--output", str(tmp_path / "out.png")]).stderr


def test_runs_that_cannot_be_compared_say_by_which_key(tmp_path: Path) -> None:
    ours = folder(tmp_path, "fedavg", [0.5, 0.5], data_hash="a" * 64)
    theirs = folder(tmp_path, "local", [0.5], data_hash="b" * 64, partition_hash="d00d" * 16)
    config = yaml.safe_load((theirs / "config.yaml").read_text())
    config["data"]["partition"]["name"] = "iid"
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    shown = warnings_of(tmp_path, ours, theirs)
    assert "data.partition.name is classes in fedavg-0 and iid in local-0" in shown
    assert "data.clients is 2 in fedavg-0 and 1 in local-0" in shown
    assert "over local" not in shown


def test_runs_whose_data_changed_say_by_which_hash(tmp_path: Path) -> None:
    ours = folder(tmp_path, "fedavg", [0.5, 0.5], data_hash="a" * 64)
    theirs = folder(tmp_path, "local", [0.5, 0.5], data_hash="b" * 64)
    assert "data_hash is aaaaaaaaaaaa in fedavg-0 and bbbbbbbbbbbb in local-0" in warnings_of(tmp_path, ours, theirs)
