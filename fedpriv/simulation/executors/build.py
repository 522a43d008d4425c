"""The executor of a federation, as it was chosen (:mod:`fedpriv.simulation.choice.executor`)."""

from __future__ import annotations

from fedpriv.client.store import ClientStore
from fedpriv.config import ExecutorConfig
from fedpriv.simulation.executors.forked import ForkedWorkers
from fedpriv.simulation.executors.in_process import in_process_executor
from fedpriv.simulation.executors.sequential import Executor, Warn
from fedpriv.simulation.setup import Federation


def check_reachable(settings: ExecutorConfig) -> None:
    """Connect to the cluster that an executor needs, if any, before a run writes anything.

    Raises:
        UsageError: the cluster does not answer.
    """
    if settings.workers == "ray":
        from fedpriv.simulation.executors.ray import connected

        connected(settings.ray_address)


def build_executor(federation: Federation, store: ClientStore | None, warn: Warn) -> Executor:
    """The executor of a federation's clients, with workers if the config asks for them.

    Args:
        store: where they keep their private states; ``None``: they keep none.
        warn: called with warnings for the user.
    """
    choice = federation.choice
    if choice is None or choice.workers == 1:
        return in_process_executor(federation, store, warn)
    if choice.workers == "ray":
        from fedpriv.simulation.executors.ray import RayWorkers

        return RayWorkers(federation, choice.config, store, warn)
    return ForkedWorkers(federation, choice.workers, store, warn)
