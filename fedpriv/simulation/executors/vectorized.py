"""The executor that trains several clients at a time as one net (:mod:`fedpriv.simulation.vectorized.batched_models`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from fedpriv.client.receiving import Received
from fedpriv.client.store import ClientStore
from fedpriv.errors import FedprivError
from fedpriv.models.batched.stacked import Form
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.memory import keep_freed_memory
from fedpriv.simulation.executors.sequential import LocalExecutor, Warn
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.batched_models import BatchedModels
from fedpriv.wire.report import Answer


class VectorizedExecutor(LocalExecutor):
    """Runs a round's clients in groups; the clients of a group train at the same time.

    If a group does not fit into the device's memory, the group size is halved from then on.

    Args:
        form: the net's form for several clients.
        group_size: clients that train at the same time.
        warn: called when a group does not fit.
    """

    def __init__(self, federation: Federation, form: Form, group_size: int, store: ClientStore | None, warn: Warn) -> None:
        super().__init__(federation, store)
        self._form, self._group_size, self._warn = form, group_size, warn
        keep_freed_memory()
        self._models: BatchedModels | None = None

    def groups(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """As few groups as possible, of nearly equal size; clients with similar numbers of samples share a group."""
        by_size = sorted(clients, key=self.federation.data.size, reverse=True)
        groups = -(-len(by_size) // self._group_size)
        bounds = [len(by_size) * number // groups for number in range(groups + 1)] if groups else []
        return [tuple(by_size[start:stop]) for start, stop in pairwise(bounds)]

    def _updates(self, instruction: Instruction, received: Received) -> Iterator[tuple[Answer, Tensor]]:
        groups = deque(self.groups(instruction.clients))
        while groups:
            group = groups.popleft()
            try:
                models = self._models_for(len(group))
                pairs = zip(models.clients, group, strict=False)
                answers = models.run([partial(self._update, model, client, instruction, received) for model, client in pairs])
            except torch.OutOfMemoryError:
                self._halve(len(group))
                groups.appendleft(group[len(group) // 2 :])
                groups.appendleft(group[: len(group) // 2])
                continue
            yield from answers

    def _halve(self, clients: int) -> None:
        """Halve the group size after ``clients`` at a time did not fit."""
        device = self.federation.resident.device
        if clients == 1:
            raise FedprivError(
                f"a client does not fit into the memory of {device}; try a smaller --batch-size or train.accumulate=2"
            )
        self._models, self._group_size = None, -(-clients // 2)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._warn(
            f"{clients} clients at once do not fit into the memory of {device}: from now on {self._group_size} (--group-size)"
        )

    def _models_for(self, clients: int) -> BatchedModels:
        """Batched models for at least so many clients."""
        if self._models is None or len(self._models.clients) < clients:
            resident = self.federation.resident
            self._models = BatchedModels(self._form, resident.space, clients, resident.row, self.sample_count)
        return self._models
