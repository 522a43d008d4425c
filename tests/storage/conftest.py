"""Runs that several tests compare with or start from, as in ``tests/simulation``."""

from tests.simulation.conftest import _halfway, fedpriv, halfway, reference, whole

__all__ = ["_halfway", "fedpriv", "halfway", "reference", "whole"]
