"""Fixtures of the simulation's tests, whose runs deployments are compared with."""

from __future__ import annotations

from tests.simulation.conftest import fedpriv, reference

__all__ = ["fedpriv", "reference"]
