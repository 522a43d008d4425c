"""The executor that trains a round's clients together, as one wide net (:mod:`fedpriv.simulation.stack`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from fedpriv.models.stacked import Form
from fedpriv.simulation.executor import Finished, LocalExecutor, Round, Spend
from fedpriv.simulation.memory import keep_freed_memory
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.stack import Stack
from fedpriv.simulation.turn import ClientDiverged


class VectorizedExecutor(LocalExecutor):
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

    def groups(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """As few groups as there may be, all of about the same size; who has about as many samples is in one."""
        by_size = sorted(clients, key=self.federation.data.size, reverse=True)
        groups = -(-len(by_size) // self._group_size)
        bounds = [len(by_size) * number // groups for number in range(groups + 1)]
        return [tuple(by_size[start:stop]) for start, stop in pairwise(bounds)]

    def _turns(self, round: Round, clients: Sequence[int]) -> Iterator[Finished | ClientDiverged]:
        for group in self.groups(clients):
            stack = self._stack_of(len(group))
            yield from stack.run(
                [partial(self._play, lane, client, round) for lane, client in zip(stack.lanes, group, strict=False)]
            )

    def _stack_of(self, clients: int) -> Stack:
        if self._stack is None or len(self._stack.lanes) < clients:
            resident = self.federation.resident
            self._stack = Stack(self._form, resident.space, clients, resident.row)
        return self._stack
