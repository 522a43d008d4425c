"""The progress of an audit: the CPU time of its steps, in one process and in several, and the time that is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedpriv.audit.progress import END, Progress, beside, keep_moments, last_moments


class Clock:
    """The CPU time of one process."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("fedpriv.audit.progress.time.process_time", clock)
    return clock


def run_part(progress: Progress, clock: Clock, name: str, **steps: float) -> dict[str, float]:
    """The times that a part of an audit reports."""
    progress.begin_part(name)
    for step, seconds in steps.items():
        progress(step)
        clock.now += seconds
    progress.end_step()
    return dict(progress.times)


def test_cpu_seconds_of_parts_in_one_process_count_once(clock: Clock) -> None:
    progress = Progress(lambda text: None)
    progress("before")
    clock.now += 1
    samples = run_part(progress, clock, "samples", images=2)
    clients = run_part(progress, clock, "clients", labels=4, members=8)
    progress.add_parts(samples | clients, {})
    assert progress.times == {"before": 1, "images": 2, "labels": 4, "members": 8}


def test_cpu_seconds_of_other_processes_are_added(clock: Clock) -> None:
    progress = Progress(lambda text: None)
    progress("before")
    clock.now += 1
    progress.add_parts({"images": 2, "labels": 4}, {"samples 0": 0.5})
    assert progress.times == {"before": 1, "images": 2, "labels": 4} and progress.moments["samples 0"] == 0.5


def test_cpu_seconds_of_unreported_parts_are_added(clock: Clock) -> None:
    """The attacks on the uploads behind sums have the steps of those on the sums, and are not reported."""
    progress = Progress(lambda text: None)
    samples = run_part(progress, clock, "samples", images=2)
    progress("for comparison")
    clock.now += 1
    run_part(progress, clock, "samples", images=3)
    progress.add_parts(samples, {})
    assert progress.times["images"] == 5 and progress.times["for comparison"] == 1


def test_time_left_is_that_of_the_last_audit_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIV_CONTROLS", str(tmp_path / "controls"))
    assert last_moments("a kind") == {}
    now, lines = [0.0], list[str]()
    monkeypatch.setattr("fedpriv.audit.progress.time.monotonic", lambda: now[0])
    first = Progress(lines.append)
    for seconds, step in ((0, "one"), (10, "two")):
        now[0] = seconds
        first(step)
    keep_moments("a kind", first.moments | {END: 30.0})
    now[0] = 0.0
    second = Progress(lines.append, before=last_moments("a kind"))
    for seconds, step in ((0, "one"), (20, "two"), (40, "three")):
        now[0] = seconds
        second(step)
    left = ["[   0 s, about 30 s left] one", "[  20 s, about 40 s left] two", "[  40 s] three"]
    assert lines == ["[   0 s] one", "[  10 s] two", *left]


@pytest.mark.parametrize("workers", [1, 2])
def test_seconds_of_calls_count_for_the_step_wherever_they_run(workers: int) -> None:
    def busy() -> int:
        began = time.process_time()
        while time.process_time() - began < 0.1:
            pass
        return os.getpid()

    progress = Progress(lambda text: None)
    progress("together")
    ran_in = list(beside([busy, busy], workers, progress))
    progress.end_step()
    assert (os.getpid() in ran_in) == (workers == 1)
    assert 0.2 <= progress.times["together"] < 0.4, "each once"
