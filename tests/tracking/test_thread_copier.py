"""Copying in a background thread: it does not disturb the run, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_runs import append, line, make_run, set_status

from fedpriv.config import TrackingConfig
from fedpriv.errors import UnknownName, UsageError
from fedpriv.tracking import ThreadCopier, check_tracking, default_uri, read_records, sync, tracker_of


def thread_copier(folder: Path, uri: str, warnings: list[str], interval: float = 2.0) -> ThreadCopier:
    return ThreadCopier(
        tracker_of(folder, {"name": "mlflow", "uri": uri, "experiment": "fedpriv"}), warnings.append, interval=interval
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(store: Path, port: int) -> Iterator[None]:
    """A real tracking server, ended with all its workers."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{store}", "--port", str(port),
               "--artifacts-destination", str(store.parent / "served"), "--workers", "1"]  # fmt: skip
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdout=quiet, stderr=quiet, start_new_session=True, env={**os.environ, **settings}, cwd=store.parent
    )
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
                time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


def test_a_live_run_is_copied_while_it_runs(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=1, status="running")
    warnings: list[str] = []
    tracker = thread_copier(folder, default_uri(runs_dir), warnings, 0.01)
    for number in range(2, 6):
        append(folder, line(number))
        tracker.notify()
    set_status(folder, "interrupted")
    assert tracker.finish()
    assert tracker.finish()  # a second time is no harm
    assert warnings == []
    assert sync(folder).points == 0


def test_system_metrics_are_sampled_while_the_run_lives(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    folder = make_run(runs_dir, status="running")
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"tracking": facts["tracking"] | {"system_metrics": True}}))
    warnings: list[str] = []
    uri = default_uri(runs_dir)
    tracker = thread_copier(folder, uri, warnings, 0.01)
    tracker.notify()
    client, deadline = MlflowClient(uri), time.monotonic() + 60
    metrics: dict[str, float] = {}
    while "system/cpu_utilization_percentage" not in metrics and time.monotonic() < deadline:
        time.sleep(0.2)
        runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        metrics = runs[0].data.metrics if runs else {}
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    set_status(folder, "finished")
    assert tracker.finish() and not warnings
    assert "SystemMetricsMonitor" not in {thread.name for thread in threading.enumerate()}


def test_uri_none_copies_nothing(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    tracker = thread_copier(folder, "none", [])
    tracker.notify()
    assert tracker.finish()
    assert not (folder / "tracking.json").exists()


def test_a_broken_folder_does_not_stop_the_run(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    (folder / "config.yaml").write_text("- not\n- a config\n")
    warnings: list[str] = []
    tracker = thread_copier(folder, default_uri(runs_dir), warnings)
    tracker.notify()
    assert not tracker.finish()
    assert len(warnings) == 1 and "must be a mapping" in warnings[0]


def test_a_slow_server_does_not_hold_up_the_end(runs_dir: Path) -> None:
    folder = make_run(runs_dir)
    warnings: list[str] = []
    with socket.socket() as silent:  # accepts and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracker = thread_copier(folder, f"http://127.0.0.1:{silent.getsockname()[1]}", warnings)
        tracker.notify()
        assert not tracker.finish(timeout=0.5)
    assert len(warnings) == 1 and f"fedpriv sync {folder}" in warnings[0]


@pytest.mark.slow
def test_server_away_then_back(runs_dir: Path) -> None:
    from mlflow import MlflowClient

    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    folder = make_run(runs_dir, rounds=20, status="running", uri=uri)
    warnings: list[str] = []
    tracker = thread_copier(folder, uri, warnings, 0.01)
    for number in range(21, 24):
        append(folder, line(number))
        tracker.notify()
        time.sleep(0.3)
    set_status(folder, "failed")
    assert not tracker.finish(timeout=20)
    assert len(warnings) == 1
    assert f"tracking server {uri} does not answer" in warnings[0] and f"fedpriv sync {folder}" in warnings[0]

    with server(runs_dir / "mlflow.db", port):
        report = sync(folder, uri)
        assert sync(folder, uri).points == 0
        client = MlflowClient(tracking_uri=uri)
        assert report.mlflow_run_id is not None
        run = client.get_run(report.mlflow_run_id)
        assert run.info.status == "FAILED"
        history = client.get_metric_history(report.mlflow_run_id, "accuracy/mean")
        wanted = [record for record in read_records(folder) if "accuracy" in record["metrics"]]
        assert [(p.step, p.timestamp, p.value) for p in history] == [
            (record["round"], record["time_ms"], record["metrics"]["accuracy"]) for record in wanted
        ]
        assert len(client.get_metric_history(report.mlflow_run_id, "bytes/up")) == 24
        assert "weights" in {item.path for item in client.list_artifacts(report.mlflow_run_id)}


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_gets_the_records_without_mlflow(runs_dir: Path) -> None:
    folder = make_run(runs_dir, rounds=3, status="running")
    for rounds in ((4, 5), (6,)):  # the second process resumes the run
        warnings: list[str] = []
        tracker = tracker_of(folder, {"name": "tensorboard", "uri": "none", "experiment": "fedpriv"})
        copies = ThreadCopier(tracker, warnings.append, interval=0.01)
        for number in rounds:
            append(folder, line(number))
            copies.notify()
        assert copies.finish() and not warnings
    wanted = [(record["round"], record["metrics"]["train_loss"]) for record in read_records(folder) if record["round"]]
    assert scalars(folder, "train_loss") == [(number, pytest.approx(value)) for number, value in wanted]
    assert not (folder / "tracking.json").exists()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"name": "tensorbord"}, UnknownName, "did you mean 'tensorboard'"),
        (
            {"name": "tensorboard", "uri": "http://host:5000"},
            UsageError,
            "uri does nothing with the tracker 'tensorboard'",
        ),
        ({"name": "tensorboard", "experiment": "mine"}, UsageError, "tracking.experiment does nothing"),
    ],
)
def test_invalid_tracking_options_are_refused(config: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_tracking(TrackingConfig.model_validate(config))


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.tracking.to_tensorboard.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"uv sync --extra tensorboard"):
        check_tracking(TrackingConfig(name="tensorboard"))
