"""Small federations, built in memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config import load_config
from fedpriv.server.run_folder import RunFolder
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation

SMALL = {
    "data.name": "digits",
    "data.clients": 10,
    "train.rounds": 3,
    "train.participation": 0.3,
    "train.local_epochs": 1,
    "train.batch_size": 50,
    "train.lr": 0.05,
    "tracking.uri": "none",
}


def simulated(runs_dir: Path, method: str, play: bool = True, **overrides: Any) -> Simulation:
    """A small simulation on digits, played to its end unless ``play=False``."""
    federation = build(load_config(None, {**SMALL, "method.name": method, **overrides}))
    simulation = Simulation(federation, RunFolder.create(federation.config, runs_dir), lambda text: None)
    simulation.start()
    if play:
        for _ in simulation.rounds():
            pass
    return simulation


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Simulation]:
    """``simulate("fedrep", **{"train.rounds": 2})``: as :func:`simulated`, in a folder of the test's."""
    numbers = count(1)
    return lambda method, play=True, **overrides: simulated(tmp_path / f"runs{next(numbers)}", method, play, **overrides)
