"""Shared by the tests of secure aggregation."""

from __future__ import annotations

from tests.simulation.conftest import quick_plots

__all__ = ["quick_plots"]
