"""Reading run folders, and finding them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fake_runs import append, line, make_run

from fedpriv.errors import UsageError
from fedpriv.evaluation.protocols import best, mean, worst_tenth
from fedpriv.tracking import find_run, flatten, read_records
from fedpriv.tracking.folder import runs_dir_of


def test_records_of_a_run_that_was_killed_and_resumed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=2, status="running")
    append(folder, line(3), torn=True)
    assert [record["round"] for record in read_records(folder)] == [0, 1, 2]
    append(folder, line(2, seed=9))  # sticks to the torn line, and is lost with it
    append(folder, line(2, seed=7))
    append(folder, line(3))
    records = read_records(folder)
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    assert records[2] == line(2, seed=7)


def test_statistics_over_clients() -> None:
    accuracies = [None, *(number / 20 for number in range(20, 0, -1)), math.nan]
    assert worst_tenth(accuracies) == pytest.approx((0.05 + 0.1) / 2)
    assert best(accuracies) == 1.0
    assert mean(accuracies) == pytest.approx(0.525)
    assert worst_tenth([0.5, 0.9]) == 0.5
    assert worst_tenth([None]) is best([]) is mean([]) is None


def test_flatten_keeps_lists() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": None})) == {"a.b": 1, "a.c.d": [1, 2], "e": None}


def test_find_run(tmp_path: Path) -> None:
    first = make_run(tmp_path, "2026-mpfedcon-s0")
    two = make_run(tmp_path, "2026-fedavg-s0")
    (tmp_path / "stray").mkdir()
    assert find_run(str(first), tmp_path) == first
    assert find_run("2026-fedavg-s0", tmp_path) == two
    assert find_run("id-2026-fedavg-s0", tmp_path) == two
    assert find_run("2026-m", tmp_path) == first
    (first / "run.json").unlink()  # killed at its very start
    assert find_run("2026-m", tmp_path) == first
    with pytest.raises(UsageError, match="fits 2 runs"):
        find_run("2026", tmp_path)
    assert find_run(str(tmp_path / "2026-m"), tmp_path / "elsewhere") == first, "the beginning of a path"
    with pytest.raises(UsageError, match=f"'{tmp_path}/2026' fits 2 runs"):
        find_run(str(tmp_path / "2026"), tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="did you mean '2026-fedavg-s0'"):
        find_run("2026-fedagv-s0", tmp_path)
    with pytest.raises(UsageError, match="not a run folder"):
        find_run(str(tmp_path / "stray"), tmp_path)
    with pytest.raises(UsageError, match="fedpriv train"):
        find_run("any", tmp_path / "empty")


def test_a_run_of_a_sweep_is_found_like_any_other(tmp_path: Path) -> None:
    of_sweep = {name: make_run(tmp_path / "sweeps" / name / "runs", "lr=0.1-s0") for name in ("a", "b")}
    alone = make_run(tmp_path / "sweeps" / "b" / "runs", "lr=0.1-s01")
    for run in ("lr=0.1-s01", "id-lr=0.1-s01"):
        assert find_run(run, tmp_path) == alone
    with pytest.raises(UsageError, match=f"'lr=0.1-s0' fits 2 runs: {of_sweep['a']}, {of_sweep['b']}"):
        find_run("lr=0.1-s0", tmp_path)
    own = make_run(tmp_path, "lr=0.1-s0")
    assert find_run("lr=0.1-s0", tmp_path) == own
    assert runs_dir_of(of_sweep["a"]) == runs_dir_of(own) == tmp_path
    assert runs_dir_of(tmp_path / "elsewhere" / "a" / "runs" / "x") == tmp_path / "elsewhere" / "a" / "runs"


def test_a_run_that_is_not_there_is_told_from_those_beside_it(tmp_path: Path) -> None:
    for month in range(1, 6):
        make_run(tmp_path / "runs", f"2026{month:02}-fedavg-s0")
    with pytest.raises(UsageError, match=r"no run 'zzz' in .*runs; 5 are there: 202605-\S+, 202604-\S+, 202603-\S+, \.\.\.$"):
        find_run("zzz", tmp_path / "runs")
    beside = tmp_path / "runs" / "202603-fedavg-s0"
    with pytest.raises(UsageError, match=rf"did you mean '{beside}'\?$"):
        find_run(str(tmp_path / "runs" / "202603-fedavg-s1"), tmp_path / "other")
    with pytest.raises(UsageError, match=r"it holds runs, such as .*/runs/2026"):
        find_run(str(tmp_path / "runs"), tmp_path / "other")
