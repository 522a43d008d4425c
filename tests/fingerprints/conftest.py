"""Runs draw no plots."""

from tests.simulation.conftest import quick_plots

__all__ = ["quick_plots"]
