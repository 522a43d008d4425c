"""Runs in a simulation and the same ones with clients apart, and what is compared of them."""

from __future__ import annotations

from tests.simulation.conftest import quick_plots, reference

__all__ = ["quick_plots", "reference"]
