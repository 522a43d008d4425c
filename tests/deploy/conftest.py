"""Runs in a simulation and the same ones with clients apart, and what is compared of them."""

from __future__ import annotations

from tests.simulation.conftest import fedpriv, reference

__all__ = ["fedpriv", "reference"]
