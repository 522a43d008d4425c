"""What a run's process computed is counted over its rounds, also over an interruption."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv.simulation import run
from fedpriv.spans import Clocks
from fedpriv.storage.checkpoints import Progress
from tests.simulation.small import FEW_STEPS, SILENT, config, resume


class Stopped(Exception):
    pass


def stop(record: dict[str, Any]) -> None:
    if record["round"] == 2:
        raise Stopped


def test_seconds_are_added_up_over_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading is a second of the clock and two of the processor later than the one before."""
    readings = itertools.count()
    monkeypatch.setattr(Clocks, "now", staticmethod(lambda: Clocks(float(at := next(readings)), 2.0 * at)))
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        run.start(config("fedavg", **FEW_STEPS, run_dir=str(folder)), tmp_path, SILENT[0], stop, SILENT[2])
    next(readings)
    resume(folder)
    summary = json.loads((folder / "summary.json").read_text())
    rounds = 1 + summary["rounds"]
    assert (summary["seconds"], summary["cpu_seconds"]) == (rounds, 2 * rounds) and rounds == 4


def test_a_run_of_an_earlier_version_does_not_know() -> None:
    assert Progress().cpu_seconds == 0 and Progress().seconds == 0
