"""The executor that trains a round's clients together, as one wide net (:mod:`fedpriv.simulation.stack`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from fedpriv.models.stacked import Form
from fedpriv.simulation.executor import Executor, Finished, Round, SequentialExecutor, Spend
from fedpriv.simulation.memory import keep_freed_memory
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.stack import Stack
from fedpriv.simulation.turn import ClientDiverged


class VectorizedExecutor(Executor):
    """Runs a round's clients in groups, each on a lane of a stack.

    Args:
        form: the net's form for several clients.
        group_size: clients that train together.
    """

    def __init__(self, federation: Federation, form: Form, group_size: int, spend: Spend | None = None) -> None:
        super().__init__(federation, spend)
        self._form, self._group_size = form, group_size
        keep_freed_memory()
        self._stack: Stack | None = None

    def _turns(self, round: Round, clients: Sequence[int]) -> Iterator[Finished | ClientDiverged]:
        data = self.federation.data
        by_size = sorted(clients, key=data.size, reverse=True)  # so that those who train together have about as many steps
        for group in _even(by_size, self._group_size):
            lanes = self._stack_of(len(group)).lanes
            turns = [partial(self._play, lane, client, round) for lane, client in zip(lanes, group, strict=False)]
            yield from self._stack_of(len(group)).run(turns)

    def _stack_of(self, clients: int) -> Stack:
        if self._stack is None or len(self._stack.lanes) < clients:
            resident = self.federation.resident
            self._stack = Stack(self._form, resident.space, clients, resident.row)
        return self._stack


def executor_of(federation: Federation, spend: Spend | None = None) -> Executor:
    """The executor that was chosen for a federation."""
    choice = federation.choice
    if choice is None or choice.form is None or choice.config.group_size is None:
        return SequentialExecutor(federation, spend)
    return VectorizedExecutor(federation, choice.form, choice.config.group_size, spend)


def _even(clients: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """As few groups as there may be, none larger than ``most``, and all of about the same size."""
    groups = -(-len(clients) // most)
    bounds = [len(clients) * number // groups for number in range(groups + 1)]
    yield from (clients[start:stop] for start, stop in pairwise(bounds))
