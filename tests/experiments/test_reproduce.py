"""Stored results are run again, and every number is compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_cells import write_cells
from made_results import BASE, FIVE, write_result, write_yaml

from fedpriv.cli import main
from fedpriv.errors import UsageError
from fedpriv.experiments import Result, read, run
from fedpriv.experiments import reproduce as run_again
from fedpriv.experiments.reproduction import compared
from fedpriv.storage.provenance import processor

RUNS = {name: FIVE[name] for name in ("fedavg", "fedrep")}


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment of two runs on two seeds, in a commit of which both runs of seed 0 are stored, one from this processor."""
    monkeypatch.setattr("fedpriv.experiments.reproduction.commit_of", lambda path: "c0ffee" * 7)
    path = write_yaml(tmp_path / "paper", runs=RUNS, seeds=[0, 1])
    write_result(path, "fedavg", 0, {5: 0.5, 10: 0.6, 15: 0.7, 20: 0.8})
    change(write_result(path, "fedrep", 0, {5: 0.5, 10: 0.6, 15: 0.7, 20: 0.8}), processor=processor())
    return path


def change(file: Path, **values: Any) -> None:
    replace(Result.load(file), **values).write(file)


def ran_again(path: Path, label: str, **values: Any) -> None:
    """The result of the second run, as if its process had just ended: the stored one but for ``values``."""
    file = path.parent.parent / "runs" / "reproduced" / ("c0ffee" * 2) / "results" / "paper" / "tiny" / f"{label}-s0.json"
    replace(Result.load(read(path).result_file(label, 0)), **values).write(file)


def reproduce(path: Path, *options: str) -> Any:
    where = ["--runs-dir", str(path.parent.parent / "runs")]
    return CliRunner().invoke(main, ["experiment", "reproduce", str(path), *where, *options])


def test_the_same_numbers_are_the_same_whatever_they_took(paper: Path) -> None:
    stored = read(paper).result_file("fedavg", 0)
    before, result = stored.read_bytes(), Result.load(stored)
    ran_again(paper, "fedavg", summary={**result.summary, "seconds": 77.0}, curve={**result.curve, "seconds": [7.0] * 4})
    done = reproduce(paper, "--only", "fedavg", "--seed", "0", "--json")
    assert done.exit_code == 0, done.output
    (reproduction,) = json.loads(done.stdout.splitlines()[-1])["results"]
    # The hash of the partition, 17 numbers of the summary, 4 rounds of 7 columns.
    assert (reproduction["run"], reproduction["state"], reproduction["numbers"]) == ("tiny/fedavg-s0", "same", 1 + 17 + 28)
    assert "all 46 numbers are the stored ones" in done.stderr
    assert stored.read_bytes() == before


def test_one_other_digit_is_found_named_and_exit_code_1(paper: Path) -> None:
    stored = Result.load(read(paper).result_file("fedavg", 0))
    ran_again(paper, "fedavg", curve={**stored.curve, "accuracy": [0.5, 0.6, 0.7, 0.800001]})
    done = reproduce(paper, "--only", "fedavg", "--seed", "0")
    assert done.exit_code == 1
    assert "1 of 46 numbers differ; curve.accuracy[3] is stored as 0.8, and is 0.800001 now" in done.output
    assert "does not say on which kind of processor" in done.output
    assert "1 of 1 results were not reproduced: tiny/fedavg-s0" in done.stderr


def test_on_the_same_processor_nothing_excuses_a_difference(paper: Path) -> None:
    ran_again(paper, "fedrep", partition_hash="another")
    done = reproduce(paper, "--only", "fedrep", "--seed", "0")
    assert done.exit_code == 1
    assert "partition_hash is stored as p0, and is another now\n" in done.output and "kind of processor" not in done.output


def test_numbers_of_earlier_versions_have_fewer_names_and_digits(paper: Path) -> None:
    new = Result.load(read(paper).result_file("fedavg", 0))
    new = replace(new, traces={"simprox/tv": [1.23456e-5, 0.0123456]}, data_hash="d")
    old = replace(new, data_hash="", traces={"simprox/tv": [1.2e-5, 0.012346]})
    assert compared(old, new) == (48, [])
    assert compared(old, replace(new, data_hash="d", traces={"simprox/tv": [1.4e-5, 0.0123456]}))[1][0].now == 1.4e-5
    assert [difference.name for difference in compared(new, old)[1]] == [
        "data_hash",
        "traces.simprox/tv[0]",
        "traces.simprox/tv[1]",
    ]
    (lost,) = compared(new, replace(new, summary={k: v for k, v in new.summary.items() if k != "bytes_up"}))[1]
    assert (lost.name, lost.stored, lost.now) == ("summary.bytes_up", 5000 * 2, None)


def test_a_sample_is_of_this_kind_of_processor(paper: Path) -> None:
    ran_again(paper, "fedrep")
    done = reproduce(paper, "--sample", "1")
    assert done.exit_code == 0, done.output
    assert "picked at random among 1 results that ran on this kind of processor" in done.output
    done = reproduce(paper, "--sample", "2")
    assert done.exit_code == 2 and "has 1 stored results that ran on" in done.stderr

    change(read(paper).result_file("fedrep", 0), processor="Another One")
    ran_again(paper, "fedavg")
    done = reproduce(paper, "--sample", "2")
    assert done.exit_code == 0 and "2 results none of which ran on this kind of processor" in done.output


def test_of_a_folder_all_experiments_are_meant(paper: Path) -> None:
    write_cells(paper.parent, cells={"dlg": {}})
    other = write_yaml(paper.parent, "other", runs={"local": FIVE["local"]}, seeds=[3])
    lines: list[str] = []
    for label in RUNS:
        ran_again(paper, label)
    runs = paper.parent.parent / "runs"
    assert [result.state for result in run_again(paper.parent, runs, say=lines.append)] == ["same", "same"]
    assert [result.run for result in run_again(paper.parent, runs, labels=["fedrep", "local"])] == ["tiny/fedrep-s0"]
    with pytest.raises(UsageError, match="has no stored result of these runs"):
        run_again(other, runs)
    with pytest.raises(UsageError, match="describes cells, not runs"):
        run_again(paper.parent / "leak.yaml", runs)


@pytest.mark.slow
def test_a_real_run_gives_the_stored_bits(tmp_path: Path) -> None:
    tiny = {**BASE, "train": {"rounds": 2, "participation": 0.5, "batch_size": 50}, "eval": {"every": 1, "last": 2}}
    path = write_yaml(tmp_path / "paper", base=tiny, runs=RUNS)
    run(read(path), tmp_path / "runs", workers=2)
    stored = read(path).result_file("fedrep", 0)
    before = stored.read_bytes()
    results = run_again(path, tmp_path / "runs", workers=2)
    assert sorted((result.run, result.state) for result in results) == [("tiny/fedavg-s0", "same"), ("tiny/fedrep-s0", "same")]
    assert stored.read_bytes() == before

    result = Result.load(stored)
    change(stored, summary={**result.summary, "accuracy": result.summary["accuracy"] + 1e-6})
    (other,) = run_again(path, tmp_path / "runs", labels=["fedrep"])
    assert other.state == "differs" and [difference.name for difference in other.differences] == ["summary.accuracy"]
