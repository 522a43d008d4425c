"""Shared by the tests of audits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.conftest import quick_plots

__all__ = ["hardly_any_steps", "quick_plots"]


@pytest.fixture
def hardly_any_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks on images that do next to nothing, for tests of what is around them."""
    few = {"steps": 1, "restarts": 0}
    budget: dict[str, dict[str, Any]] = dict.fromkeys(("dlg", "idlg", "random-head", "known-head"), few)
    budget |= {name: {"adam_steps": 2, **few} for name in ("joint-head", "head-free")}
    budget |= {"analytic-features": {"adam": 2, "lbfgs": 1}, "unrolled": {"iterations": 1}, "inverting-gradients": {"steps": 1}}
    monkeypatch.setattr("fedpriv.audit.reconstructions._MESSAGE_BUDGET", budget)
    monkeypatch.setattr("fedpriv.audit.reconstructions._SINGLE_BUDGET", budget)
    monkeypatch.setattr("fedpriv.audit.reconstructions.EASIEST", 2)
