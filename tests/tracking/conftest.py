"""A template of MLflow's schema, made once: its creation takes seconds."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fedpriv.tracking import store

sys.path.insert(0, str(Path(__file__).parent))  # for `fake_runs`, whatever import mode pytest uses


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite store with MLflow's schema and nothing in it."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    store.create_store(path)
    return path


@pytest.fixture
def runs_dir(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder (with a space in its path) that has an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "my runs"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    return folder
