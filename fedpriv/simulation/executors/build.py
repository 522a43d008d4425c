"""The executor of a federation, as it was chosen (:mod:`fedpriv.simulation.executor_choice`)."""

from __future__ import annotations

from fedpriv.simulation.executors.sequential import Executor, LocalExecutor, SequentialExecutor, Spend, Warn
from fedpriv.simulation.executors.vectorized import VectorizedExecutor
from fedpriv.simulation.executors.workers import Workers
from fedpriv.simulation.setup import Federation


def executor_of(federation: Federation, spend: Spend, warn: Warn) -> Executor:
    """The executor of a federation's clients.

    Args:
        spend: called with (client, sampling rate, steps) before a client trains with sample-level DP.
        warn: called with warnings for the user.
    """
    workers = 1 if federation.choice is None else federation.choice.config.workers
    return (
        in_this_process(federation, spend, warn) if workers == 1 else Workers(federation, in_this_process, workers, spend, warn)
    )


def in_this_process(federation: Federation, spend: Spend, warn: Warn) -> LocalExecutor:
    """The same without workers."""
    together = federation.choice and federation.choice.together
    return VectorizedExecutor(federation, *together, spend, warn) if together else SequentialExecutor(federation, spend)
