"""Commands in this process, in an empty folder, without hub, data folder or caches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedpriv.cli import main

__all__ = ["empty_folder", "fedpriv"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a test."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fedpriv.hub._answers", lambda url: False)
    return folder


@pytest.fixture
def fedpriv() -> Callable[..., Result]:
    """``fedpriv("train", "--rounds", 3)``."""
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])
