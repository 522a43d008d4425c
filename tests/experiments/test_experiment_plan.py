"""What is left of an experiment, and its hours: from results, from a pilot, or not known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_results import BASE, play, write_result, write_yaml

from fedpriv.cli import main
from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.experiments import Result, plan, read
from fedpriv.storage.provenance import processor

RUNS = {"fedavg": {"method": {"name": "fedavg"}}, "fedrep": {"method": {"name": "fedrep"}}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two methods with two seeds of 20 rounds."""
    return write_yaml(tmp_path / "paper", runs=RUNS, seeds=[0, 1, 2])


def spent(file: Path, seed: int, cpu: float | None, where: str, seconds: float = 999.0) -> None:
    """A result of ``fedavg`` that took so many seconds on a processor."""
    path = write_result(file, "fedavg", seed, {15: 0.5, 20: 0.5})
    result = Result.load(path)
    summary = {**result.summary, "rounds": 20, "seconds": seconds, "cpu_seconds": cpu}
    replace(result, summary=summary, processor=where).write(path)


def test_a_round_costs_what_the_other_seeds_have_measured(file: Path, tmp_path: Path) -> None:
    spent(file, 0, 40.0, processor())
    spent(file, 1, 400.0, "an older one")
    fedavg, fedrep = plan.plan(read(file), tmp_path)
    assert fedavg == plan.Left("fedavg", 1, 20, 2.0, "seed 0"), "of the same kind of processor alone"
    assert fedavg.hours == pytest.approx(20 * 2 / 3600)
    assert fedrep == plan.Left("fedrep", 3, 60, None, "not measured") and fedrep.hours is None


def test_seconds_of_another_processor_are_better_than_none(file: Path, tmp_path: Path) -> None:
    spent(file, 0, None, "an older one", seconds=60.0)
    spent(file, 1, 20.0, "")
    (left,) = plan.plan(read(file), tmp_path, labels=["fedavg"])
    assert (left.seconds_a_round, left.source) == (2.0, "seeds 0, 1, another processor")


def test_an_interrupted_run_goes_on_from_its_last_round(tmp_path: Path) -> None:
    short = {**BASE, "train": {"rounds": 3, "participation": 0.5}, "eval": {"every": 1, "last": 1}}
    experiment = read(write_yaml(tmp_path / "paper", base=short, runs=RUNS))

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(experiment, tmp_path, "fedavg", 0, stop)
    assert [left.rounds for left in plan.plan(experiment, tmp_path)] == [1, 3]
    assert [left.rounds for left in plan.plan(experiment, tmp_path / "elsewhere")] == [3, 3]


@pytest.mark.parametrize(("every", "last", "tests"), [(5, 2, 5), (1, 1, 20), (50, 1, 1), (10, 10, 11)])
def test_tests_are_counted_as_a_run_makes_them(every: int, last: int, tests: int) -> None:
    config = RunConfig.model_validate({**BASE, "eval": {"every": every, "last": last}})
    assert plan._tests(config) == tests


def test_a_pilot_tells_training_tests_and_the_end_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 9 (the first one warms up), 3 (with tests), 1 and 13 seconds (with tests, and what is tested once)."""
    now = [0.0]

    def played(config: RunConfig, folder: Path, on_start: object, on_round: Any, warn: object) -> None:
        assert (config.train.rounds, config.eval.every, config.eval.last, config.tracking.uri) == (4, 2, 1, "none")
        for number, seconds in enumerate((9.0, 3.0, 1.0, 13.0), 1):
            now[0] += seconds
            on_round({"round": number})

    monkeypatch.setattr(plan, "start", played)
    monkeypatch.setattr(plan.time, "process_time", lambda: now[0])
    config = RunConfig.model_validate(BASE)  # 20 rounds, of which the 5th, 10th, 15th, 19th and 20th are tested
    assert plan.pilot(config) == pytest.approx((15 * 1 + 4 * 3 + 13) / 20)


@pytest.mark.slow
def test_the_command_measures_what_is_not_known(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spent(file, 0, 40.0, processor())
    done = CliRunner().invoke(main, ["experiment", "plan", str(file), "--json"])
    assert done.exit_code == 0, done.output
    (planned,) = json.loads(done.stdout.splitlines()[-1])["experiments"]
    assert (planned["left"], planned["rounds"], planned["not_measured"]) == (5, 100, ["fedrep"])
    assert planned["hours"] == pytest.approx(40 * 2 / 3600)
    assert "without those that were not measured" in done.stderr

    done = CliRunner().invoke(main, ["experiment", "plan", str(file.parent), "--measure", "--json"])
    assert done.exit_code == 0, done.output
    (planned,) = json.loads(done.stdout.splitlines()[-1])["experiments"]
    assert planned["not_measured"] == [] and planned["hours"] > 40 * 2 / 3600
    assert [run["source"] for run in planned["runs"]] == ["seed 0", "4 rounds, now"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["paper"], "a pilot leaves nothing"


def test_a_folder_without_experiments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no experiment"):
        plan.planned(tmp_path, tmp_path)
