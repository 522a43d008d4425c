"""Ctrl-C ends the round, says how to go on, and loses nothing."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from tests.simulation.processes import Process, wait_for_interrupt
from tests.simulation.small import computed, facts, flags, rounds_recorded

ROUNDS = {"train.rounds": 5}


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.005)


def test_ctrl_c_ends_the_round_and_resume_finishes(
    tmp_path: Path, reference: Callable[..., Path], fedpriv: Callable[..., Result]
) -> None:
    folder, ready = tmp_path / "run", tmp_path / "ready"
    arguments = ["train", *flags("mpfedcon", **ROUNDS), "--run-dir", folder]
    process = Process(tmp_path, *arguments, sabotage=partial(wait_for_interrupt, 3, ready))
    wait_for(ready)
    process.signal(signal.SIGINT)
    ended = process.wait()
    assert ended.code == 130
    assert "stopping after this round" in ended.err
    assert "fedpriv resume" in ended.out and "after round 3" in ended.out
    assert "Traceback" not in ended.err
    assert facts(folder)["status"] == "interrupted"
    assert rounds_recorded(folder) == [0, 1, 2, 3]
    resumed = fedpriv("resume", folder)
    assert resumed.exit_code == 0, resumed.output
    assert computed(folder) == computed(reference("mpfedcon", **ROUNDS))
    assert facts(folder)["status"] == "finished"


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_resume_finishes(
    tmp_path: Path, reference: Callable[..., Path], fedpriv: Callable[..., Result]
) -> None:
    folder, ready = tmp_path / "run", tmp_path / "ready"
    arguments = ["train", *flags("mpfedcon", **ROUNDS), "--run-dir", folder]
    process = Process(tmp_path, *arguments, sabotage=partial(wait_for_interrupt, 3, ready, times=2))
    wait_for(ready)
    process.signal(signal.SIGINT)
    wait_for(ready.with_suffix(".again"))
    process.signal(signal.SIGINT)
    ended = process.wait()
    assert ended.code == 130
    assert "interrupted" in ended.err and "Traceback" not in ended.err
    assert facts(folder)["status"] == "interrupted"
    assert rounds_recorded(folder) == [0, 1, 2]
    assert fedpriv("resume", folder).exit_code == 0
    assert computed(folder) == computed(reference("mpfedcon", **ROUNDS))


def test_ctrl_c_under_json_leaves_standard_output_empty(tmp_path: Path) -> None:
    arguments = ["train", *flags("fedavg"), "--run-dir", tmp_path / "run", "--json"]
    process = Process(tmp_path, *arguments, sabotage=partial(wait_for_interrupt, 2, tmp_path / "ready"))
    wait_for(tmp_path / "ready")
    process.signal(signal.SIGINT)
    ended = process.wait()
    assert (ended.code, ended.out) == (130, "")
    assert "fedpriv resume" in ended.err


def test_ctrl_c_in_the_last_round_finishes_the_run(tmp_path: Path) -> None:
    arguments = ["train", *flags("fedavg"), "--run-dir", tmp_path / "run", "--json"]
    process = Process(tmp_path, *arguments, sabotage=partial(wait_for_interrupt, 3, tmp_path / "ready"))
    wait_for(tmp_path / "ready")
    process.signal(signal.SIGINT)
    ended = process.wait()
    assert ended.code == 0
    assert json.loads(ended.out.splitlines()[-1])["rounds"] == 3
    assert facts(tmp_path / "run")["status"] == "finished"
