"""A runs folder with a store of MLflow."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `fake_runs`, whatever import mode pytest uses


@pytest.fixture
def runs_dir(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder (with a space in its path) that has an empty store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "my runs"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder
