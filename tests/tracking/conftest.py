"""A template of MLflow's schema, made once: its creation takes seconds."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from fedpriv.tracking import store

sys.path.insert(0, str(Path(__file__).parent))  # for `fake_runs`, whatever import mode pytest uses


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite store with MLflow's schema and nothing in it; one for all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "mlflow.db"
    store.create_store(path)  # one makes it, the others wait
    return path


@pytest.fixture
def runs_dir(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder (with a space in its path) that has an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "my runs"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    return folder
