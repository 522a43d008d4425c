"""A small run that is trained through the Python interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedpriv

__all__ = ["here", "run"]

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "clients": 5,
    "rounds": 3,
    "local_epochs": 1,
    "lr": 0.05,
    "executor": "sequential",
    "tracking_uri": "none",
    "data": {"limit": 300},
}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedpriv.Run:
    return fedpriv.train(method="fedavg", runs_dir=tmp_path_factory.mktemp("runs"), **SMALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
