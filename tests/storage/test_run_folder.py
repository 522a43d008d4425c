"""Where a run may be put, and what its folder then holds."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import PIL.Image
import pytest
from click.testing import Result

from fedpriv.errors import UsageError
from fedpriv.storage.provenance import git_commit, processor
from fedpriv.storage.run_folder import RunFolder, default_name
from tests.simulation.processes import Process, become_nobody, die_within
from tests.simulation.small import config, facts, flags, resume, simulation

Fedpriv = Callable[..., Result]


@pytest.mark.parametrize("place", ["a-file/run", "a-file", "/dev/null/run"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, fedpriv: Fedpriv, place: str) -> None:
    (tmp_path / "a-file").write_text("mine")
    result = fedpriv("train", *flags("fedavg"), "--run-dir", tmp_path / place)
    assert result.exit_code == 2
    assert "cannot write the run folder" in result.stderr and "--run-dir" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert (tmp_path / "a-file").read_text() == "mine"


@pytest.mark.parametrize("mode", [0o500, 0o000], ids=["read-only", "closed"])
def test_a_folder_of_somebody_else(tmp_path: Path, mode: int) -> None:
    with TemporaryDirectory() as theirs:  # not under `tmp_path`, which is closed to others already
        os.chmod(theirs, mode)
        ended = Process(tmp_path, "train", *flags("fedavg"), "--run-dir", Path(theirs) / "run", sabotage=become_nobody).wait()
        os.chmod(theirs, 0o700)
        assert os.listdir(theirs) == []
    assert ended.code == 2, ended.err
    assert "Permission denied" in ended.err and "--run-dir" in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, fedpriv: Fedpriv) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    result = fedpriv("train", *flags("fedper"), "--run-dir", tmp_path / "photos")
    assert result.exit_code == 2 and "is no run, and holds cat" in result.stderr and "--run-dir" in result.stderr
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat"]
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)  # a beginning that was broken off
    (tmp_path / "begun" / "log.txt").touch()
    RunFolder.create(config("fedavg", run_dir=str(tmp_path / "begun")), tmp_path)


def test_a_folder_that_holds_a_run_already(tmp_path: Path, fedpriv: Fedpriv) -> None:
    RunFolder.create(config("fedavg", run_dir=str(tmp_path / "run")), tmp_path)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    result = fedpriv("train", *flags("fedper"), "--run-dir", tmp_path / "run")
    assert result.exit_code == 2
    assert "holds a run already" in result.stderr and "fedpriv resume" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    RunFolder(tmp_path / "run").update_facts(deployed={})
    assert "`fedpriv deploy resume " in fedpriv("train", *flags("fedper"), "--run-dir", tmp_path / "run").stderr


def test_an_empty_folder_is_fine(tmp_path: Path, fedpriv: Fedpriv) -> None:
    (tmp_path / "run").mkdir()
    assert fedpriv("train", *flags("fedavg", **{"train.rounds": 1}), "--run-dir", tmp_path / "run").exit_code == 0


def test_names_differ_so_that_runs_started_in_one_second_do_not_meet(tmp_path: Path) -> None:
    folders = {RunFolder.create(config("fedavg"), tmp_path).path.name for _ in range(5)}
    assert len(folders) == 5
    assert all("fedavg-digits-s0" in name for name in folders)
    assert "fedavg-s0-" in default_name(config("fedavg"), with_data=False)


def test_a_finished_run_says_what_it_was(reference: Callable[..., Path]) -> None:
    folder = reference("mpfedcon")
    stored = facts(folder)
    assert (stored["method"], stored["dataset"], stored["seed"], stored["status"], stored["device"]) == (
        "mpfedcon",
        "digits",
        0,
        "finished",
        "cpu",
    )
    assert stored["config_fingerprint"] == RunFolder(folder).config().fingerprint()
    assert {"torch", "fedpriv", "mlflow"} <= stored["versions"].keys() and stored["processor"] == processor() != ""
    wanted = {
        "config.yaml",
        "run.json",
        "partition.safetensors",
        "metrics.jsonl",
        "checkpoints",
        "preprocessing.json",
        "clients",
        "payloads",
        "summary.json",
        "weights",
        "plots",
    }
    shown = [path for path in folder.rglob("*") if not path.name.startswith(".")]  # beside it lie locks
    assert {path.name for path in shown if path.parent == folder} == wanted
    assert all(path.stat().st_size for path in shown if path.is_file())


def test_a_run_that_another_process_plays_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = simulation(folder, "fedavg")
    with started.folder.alone(), pytest.raises(UsageError, match=rf"process {os.getpid()} on {socket.gethostname()} is running"):
        resume(folder)
    assert resume(folder).summary is not None


def test_the_folder_of_a_run_is_its_own_from_the_moment_it_is_made(tmp_path: Path, fedpriv: Fedpriv) -> None:
    """Else a second `train` there may play its config in a folder that says another."""
    wanted = config("fedavg", run_dir=str(tmp_path / "run"))
    with RunFolder.begin(wanted, tmp_path) as folder:
        before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
        for command in (("train", *flags("fedper"), "--run-dir", folder.path), ("resume", folder.path)):
            result = fedpriv(*command)
            assert result.exit_code == 2
            assert f"process {os.getpid()} on" in result.stderr and len(result.stderr.strip().splitlines()) == 1
        assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    assert resume(folder.path).summary is not None


def test_of_two_that_begin_at_once_one_plays(tmp_path: Path) -> None:
    """Each waits until the other has looked whether there is a run."""
    both, outcomes = threading.Barrier(2), dict[str, str]()

    def begin(method: str) -> None:
        both.wait()
        try:
            with RunFolder.begin(config(method, run_dir=str(tmp_path / "run")), tmp_path):
                outcomes[method] = "plays"
                time.sleep(0.2)
        except UsageError as error:
            outcomes[method] = str(error)

    threads = [threading.Thread(target=begin, args=(method,)) for method in ("fedavg", "local")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (player,) = [method for method, what in outcomes.items() if what == "plays"]
    assert RunFolder(tmp_path / "run").config().method.name == player
    assert any("is running the run in" in what for what in outcomes.values())


def test_a_run_whose_process_is_gone_is_not_said_to_run(tmp_path: Path) -> None:
    with RunFolder.begin(config("fedavg"), tmp_path) as folder:
        folder.update_facts(status="running")
        assert folder.status == "running"
        assert RunFolder(folder.path).status == "running", "also for who has looked before"
    assert folder.status == "killed"
    lock = folder.path / ".run.lock"
    for elsewhere in ("process 1 on another-machine", ""):
        lock.write_text(elsewhere)
        assert folder.status == "running or killed"
        with pytest.raises(UsageError, match="holds a run already"):
            folder.check_new()
        assert folder.status == "running or killed", "who only looks leaves the name of the last process"
    lock.unlink()
    assert folder.status == "running or killed"
    folder.update_facts(status="failed")
    assert folder.status == "failed"


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    ended = Process(tmp_path, "train", *flags("fedavg"), "--run-dir", tmp_path / "run", sabotage=partial(die_within, 0.1)).wait()
    assert ended.code < 0
    assert (tmp_path / "run" / ".run.lock").read_text().startswith("process ")
    assert resume(tmp_path / "run").summary is not None


def test_a_line_of_metrics_is_on_the_disk_before_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after a later checkpoint must not cost the lines of earlier rounds, which no checkpoint holds any more."""
    folder, synced = RunFolder(tmp_path), set()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    folder.append({"round": 0})
    assert (tmp_path / "metrics.jsonl").stat().st_ino in synced


def test_a_run_does_not_move_in_among_other_runs(tmp_path: Path, fedpriv: Fedpriv) -> None:
    assert fedpriv("train", *flags("fedavg"), "--run-dir", tmp_path / "runs" / "one").exit_code == 0
    result = fedpriv("train", *flags("fedavg"), "--run-dir", tmp_path / "runs")
    assert result.exit_code == 2 and "holds other runs" in result.stderr
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"one"}


def test_a_relative_data_set_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = tmp_path / "here" / "photos"
    for index in range(24):
        file = photos / f"class{index % 2}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (8, 8), index * 9).save(file)
    monkeypatch.chdir(tmp_path / "here")
    overrides = {"data.name": "./photos", "data.clients": 2, "data.partition.name": "iid", "train.participation": 0.5}
    simulation(tmp_path / "run", "fedavg", **overrides)
    monkeypatch.chdir(tmp_path)
    outcome = resume(tmp_path / "run")
    assert outcome.summary is not None and outcome.summary["dataset"] == str(photos)


def test_updates_that_were_left_out_are_said(tmp_path: Path, fedpriv: Fedpriv) -> None:
    hot = {"train.lr": 1e6, "train.on_nan": "drop"}
    result = fedpriv("train", *flags("fedavg", **hot), "--run-dir", tmp_path / "run")
    assert result.exit_code == 0
    assert re.search(r"diverged local trainings, left out +9 of 9", result.stdout)


def test_the_commit_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None
    for command in ("init", "add .", "-c user.name=me -c user.email=me@here commit --message first"):
        Path("file").write_text("first")
        subprocess.run(["git", *command.split()], check=True, capture_output=True)
    commit = git_commit()
    assert commit is not None and re.fullmatch("[0-9a-f]{40}", commit)
    Path("file").write_text("second")
    assert git_commit() == f"{commit}-dirty"
