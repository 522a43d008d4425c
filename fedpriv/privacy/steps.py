"""The steps of DP-SGD that a local update takes: a function of the client's number of samples, so that the server knows them
too."""

from __future__ import annotations

import math

from fedpriv.interfaces import Phase
from fedpriv.wire.report import Charge


def schedule(samples: int, batch_size: int) -> tuple[float, int]:
    """Sampling rate and steps an epoch of DP-SGD: batches of ``batch_size`` in expectation, and as many as plain SGD takes."""
    return min(1.0, batch_size / samples), math.ceil(samples / batch_size)


def charge(phase: Phase, samples: int, batch_size: int) -> Charge:
    """Sampling rate and steps of a phase at a client with so many training samples."""
    rate, steps = schedule(samples, batch_size)
    return rate, phase.epochs * steps
