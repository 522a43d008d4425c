"""The steps of DP-SGD in a local update: a function of the client's number of samples, so that the server knows them, too."""

from __future__ import annotations

import math

from fedpriv.interfaces import Phase
from fedpriv.wire.report import Charge


def schedule(samples: int, batch_size: int) -> tuple[float, int]:
    """Sampling rate and number of steps of an epoch of DP-SGD: as many as in plain SGD, with the same expected batch."""
    return min(1.0, batch_size / samples), math.ceil(samples / batch_size)


def charge(phase: Phase, samples: int, batch_size: int) -> Charge:
    """Sampling rate and number of steps of a phase, for a client with ``samples`` training samples."""
    rate, steps = schedule(samples, batch_size)
    return rate, phase.epochs * steps
