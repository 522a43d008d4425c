"""Copying in a process of its own: the run does not wait for it, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_runs import append, line, make_run, set_status

from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import ProcessCopier, ServerAway, ThreadCopier, copier_of, default_uri, sync, tracker_of
from fedpriv.tracking.copiers import NICENESS
from fedpriv.tracking.to_mlflow import MlflowTracker


def process_copier(folder: Path, uri: str, warnings: list[str], patience: float = 60.0) -> ProcessCopier:
    tracker = tracker_of(folder, {"name": "mlflow", "uri": uri, "experiment": "fedpriv"})
    assert tracker is not None
    return ProcessCopier(tracker, warnings.append, patience)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_the_process_continues_after_the_run(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=1, status="running")
    warnings: list[str] = []
    copying = process_copier(folder, default_uri(runs_dir), warnings, patience=0.0)
    copying.notify()
    append(folder, line(2))
    set_status(folder, "finished")
    assert copying.finish() is None and warnings == []
    wait_until(lambda: (folder / "tracking.json").exists() and '"FINISHED"' in (folder / "tracking.json").read_text())
    wait_until(copying._ended.is_set)
    assert copying.finish() is True, "a second time is no harm"
    assert sync(folder).points == 0


def test_it_gives_way_to_the_run_and_a_killed_run_is_marked_as_killed(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=1, status="running")
    copying = process_copier(folder, default_uri(runs_dir), [])
    with RunFolder(folder).alone():
        copying.notify()
        wait_until(lambda: (folder / "tracking.json").exists() and '"last_round": 1' in (folder / "tracking.json").read_text())
        assert copying._process is not None and copying._process.stdin is not None
        niceness = [os.getpriority(os.PRIO_PROCESS, process) for process in (0, copying._process.pid)]
        assert niceness[1] == min(19, niceness[0] + NICENESS)
        copying._process.stdin.close()  # as the system does for a process that ends, before it frees its lock
    wait_until(copying._ended.is_set)
    assert '"KILLED"' in (folder / "tracking.json").read_text()


def test_errors_of_the_process_become_warnings(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    (folder / "run.json").write_text("[]")
    warnings: list[str] = []
    copying = process_copier(folder, default_uri(runs_dir), warnings)
    copying.notify()
    assert copying.finish() is False
    assert len(warnings) == 1 and "run.json" in warnings[0] and f"fedpriv sync {folder}" in warnings[0]


def test_an_absent_server_is_noticed_before_mlflow_is_imported(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, uri = make_run(runs_dir), "http://me:secret@127.0.0.1:9"
    monkeypatch.setattr("fedpriv.tracking.to_mlflow.sync", lambda *_: pytest.fail("MLflow is imported"))
    with pytest.raises(ServerAway, match=r"tracking server http://me:\*\*\*@127\.0\.0\.1:9 does not answer"):
        MlflowTracker(folder, uri, "fedpriv").copy()


def test_a_killed_process_causes_a_warning(runs_dir: Path) -> None:
    folder, warnings = make_run(runs_dir), list[str]()
    copying = process_copier(folder, default_uri(runs_dir), warnings)
    copying.notify()
    assert copying._process is not None
    os.kill(copying._process.pid, signal.SIGKILL)
    assert copying.finish() is False
    assert len(warnings) == 1 and "exit code -9" in warnings[0] and "fedpriv sync" in warnings[0]


def test_a_process_that_cannot_be_started_does_not_stop_the_run(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **options: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("fedpriv.tracking.copiers.subprocess.Popen", full)
    folder, warnings = make_run(runs_dir), list[str]()
    copying = process_copier(folder, default_uri(runs_dir), warnings)
    copying.notify()
    copying.notify()
    assert copying.finish() is False
    assert len(warnings) == 1 and "cannot be started (Resource temporarily unavailable)" in warnings[0]


def test_the_command_shows_no_password(runs_dir: Path) -> None:
    folder = make_run(runs_dir, status="running")
    (folder / "run.json").write_text(json.dumps([]))  # nothing to copy, so that MLflow is not imported
    copying = process_copier(folder, "http://me:sesame-open@127.0.0.1:9", [])
    copying.notify()
    process = copying._process
    assert process is not None and process.stdin is not None
    assert "sesame" not in str(process.args) and "sesame" not in Path(f"/proc/{process.pid}/environ").read_text()
    process.stdin.close()  # as the system does when the run is killed
    assert process.wait(60) == 0


def test_own_process_chooses_the_copier(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = tracker_of(make_run(runs_dir), {"name": "mlflow", "uri": default_uri(runs_dir), "experiment": "fedpriv"})
    assert isinstance(copier_of(tracker, print, 2.0), ThreadCopier)  # tests share one import of MLflow
    monkeypatch.setattr(MlflowTracker, "own_process", True)
    assert isinstance(copier_of(tracker, print, 2.0), ProcessCopier)
    assert isinstance(copier_of(None, print, 2.0), ThreadCopier)
