"""The executor that runs clients in this process: one after another, or several as one net."""

from __future__ import annotations

from fedpriv.client.store import ClientStore
from fedpriv.simulation.executors.sequential import LocalExecutor, SequentialExecutor, Warn
from fedpriv.simulation.executors.vectorized import VectorizedExecutor
from fedpriv.simulation.setup import Federation


def in_process_executor(federation: Federation, store: ClientStore | None, warn: Warn) -> LocalExecutor:
    """The executor of a federation's clients, without workers.

    Args:
        store: where they keep their private states; ``None``: they keep none.
        warn: called with warnings for the user.
    """
    together = federation.choice and federation.choice.together
    return VectorizedExecutor(federation, *together, store, warn) if together else SequentialExecutor(federation, store)
