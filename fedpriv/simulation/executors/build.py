"""The executor of a federation, as it was chosen (:mod:`fedpriv.simulation.executor_choice`)."""

from __future__ import annotations

from fedpriv.client.store import ClientStore
from fedpriv.simulation.executors.sequential import Executor, LocalExecutor, SequentialExecutor, Warn
from fedpriv.simulation.executors.vectorized import VectorizedExecutor
from fedpriv.simulation.executors.workers import Workers
from fedpriv.simulation.setup import Federation


def executor_of(federation: Federation, store: ClientStore | None, warn: Warn) -> Executor:
    """The executor of a federation's clients.

    Args:
        store: where they keep their private states; ``None``: nowhere.
        warn: called with warnings for the user.
    """
    workers = 1 if federation.choice is None else federation.choice.config.workers
    if workers > 1:
        return Workers(federation, in_this_process, workers, store, warn)
    return in_this_process(federation, store, warn)


def in_this_process(federation: Federation, store: ClientStore | None, warn: Warn) -> LocalExecutor:
    """The same without workers."""
    together = federation.choice and federation.choice.together
    return VectorizedExecutor(federation, *together, store, warn) if together else SequentialExecutor(federation, store)
