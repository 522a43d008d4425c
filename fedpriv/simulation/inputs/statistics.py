"""The statistics of a simulation: those that its clients would send before round 1, as the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def answers(self, question: Sealed) -> Iterator[tuple[int, Sealed]]:
        for client in self.clients:
            yield client.number, client.answer(question)


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
    clients = SimulatedRespondents([Respondent(client, of_client) for client, of_client in rows.items()])
    gathered = gather(clients, dataset.kind, data)
    return dataset.encoded(gathered.encoding, np.unique(np.concatenate(list(held.values())))), gathered


def note_on_statistics(dataset: Dataset, config: RunConfig) -> str:
    """A line on what clients of these samples send before round 1."""
    if not dataset.cells:
        return (
            "before round 1, clients send the sums of their training images' pixels and of their squares, by channel; no epsilon "
            "covers them"
        )
    least = config.data.min_level
    return (
        "before round 1, clients send statistics of their training rows: how many there are, sums and sums of squares of each "
        f"column of numbers, counts of each level that at least {least} of a client's rows have (data.min_level); no epsilon "
        "covers them"
    )
