"""The statistics of a simulation: those that its clients would send before round 1, as the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.client.statistics import Respondent
from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.partitions.partition import Partition
from fedpriv.server.statistics import Gathered, gather
from fedpriv.wire import Sealed


@dataclass(frozen=True)
class SimulatedRespondents:
    """All clients that hold training rows, in this process."""

    clients: Sequence[Respondent]

    @property
    def numbers(self) -> list[int]:
        return [client.number for client in self.clients]

    def answers(self, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        for client in self.clients:
            if client.number in questions:
                yield client.number, client.answer(questions[client.number])


def measured(dataset: Dataset, partition: Partition, config: RunConfig) -> tuple[Dataset, Gathered | None]:
    """The data set as the clients' statistics scale and code it, and these; ``None``: it needs none.

    Raises:
        UsageError: no training row of any client has a number in some column.
    """
    if dataset.is_encoded:
        return dataset, None
    data = config.data
    held = {client: rows for client, rows in enumerate(partition.train) if len(rows)}
    rows = {client: dataset.training_rows(np.asarray(places), data.min_level) for client, places in held.items()}
    secure = config.wire.secure_aggregation
    clients = SimulatedRespondents([Respondent(client, of_client, secure) for client, of_client in rows.items()])
    gathered = gather(clients, dataset.kind, config)
    return dataset.encoded(gathered.encoding, np.unique(np.concatenate(list(held.values())))), gathered


def note_on_statistics(dataset: Dataset, config: RunConfig) -> str:
    """A line on what clients of these samples send before round 1."""
    what = "sums of their pixels and of the squares, by channel"
    if dataset.cells and dataset.kind.columns:
        what = (
            "sums and sums of squares of each column of numbers, and how many of its rows have each level that at least "
            f"{config.data.min_level} have (data.min_level)"
        )
    if config.wire.secure_aggregation:
        what += "; the server learns their sum over the clients alone, but each client's levels by name"
    return f"before round 1, each client sends statistics of its training samples: {what}; no epsilon covers them"
