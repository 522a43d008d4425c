"""What all tests share: one thread, no hub, and small federations built in memory."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
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
    "train.lr": 0.05,
    "tracking.uri": "none",
}


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Simulation]:
    """``simulate("fedrep", **{"train.rounds": 2})``: a small simulation on digits, played to its end unless ``play=False``."""
    made = 0

    def make(method: str, play: bool = True, **overrides: Any) -> Simulation:
        nonlocal made
        made += 1
        federation = build(load_config(None, {**SMALL, "method.name": method, **overrides}))
        folder = RunFolder.create(federation.config, tmp_path / f"runs{made}")
        simulation = Simulation(federation, folder, lambda text: None)
        simulation.start()
        if play:
            for _ in simulation.rounds():
                pass
        return simulation

    return make
