"""The executor of a federation, as it was chosen (:mod:`fedpriv.simulation.executor_choice`)."""

from __future__ import annotations

from fedpriv.client.store import ClientStore
from fedpriv.config import ExecutorConfig
from fedpriv.simulation.executors.sequential import Executor, LocalExecutor, SequentialExecutor, Warn
from fedpriv.simulation.executors.vectorized import VectorizedExecutor
from fedpriv.simulation.executors.workers import Workers
from fedpriv.simulation.setup import Federation


def reach(settings: ExecutorConfig) -> None:
    """Connect to the machines that an executor needs, if any, before a run writes anything.

    Raises:
        UsageError: they do not answer.
    """
    if settings.workers == "ray":
        from fedpriv.simulation.executors.ray import connected

        connected(settings.ray_address)


def executor_of(federation: Federation, store: ClientStore | None, warn: Warn) -> Executor:
    """The executor of a federation's clients.

    Args:
        store: where they keep their private states; ``None``: nowhere.
        warn: called with warnings for the user.
    """
    settings = None if federation.choice is None else federation.choice.config
    if settings is None or not settings.spread:
        return in_this_process(federation, store, warn)
    if settings.workers == "ray":
        from fedpriv.simulation.executors.ray import RayWorkers

        return RayWorkers(federation, in_this_process(federation, store, warn), settings, store, warn)
    return Workers(federation, in_this_process, settings.workers, store, warn)


def in_this_process(federation: Federation, store: ClientStore | None, warn: Warn) -> LocalExecutor:
    """The same without workers."""
    together = federation.choice and federation.choice.together
    return VectorizedExecutor(federation, *together, store, warn) if together else SequentialExecutor(federation, store)
