from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["no_traces"]


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's data folder nor their caches nor the hub."""
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr("fedpriv.hub._answers", lambda url: False)
