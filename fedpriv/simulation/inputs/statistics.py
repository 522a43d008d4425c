"""The statistics of a simulation: those that its clients would send before round 1, as the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.client.statistics import PrivateStatistics, Respondent
from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.partitions.partition import Partition
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.noise_source import RandomSource, SeededSource
from fedpriv.seeding import derive
from fedpriv.server.statistics import Gathered, counted_classes, gather, statistics_noise
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


def private_statistics(config: RunConfig, noise: float, source: RandomSource) -> PrivateStatistics | None:
    """How a client makes its statistics private; ``None``: the run is not private.

    Args:
        noise: the noise multiplier of the statistics.
        source: of the client's noise.
    """
    if config.privacy.level == "none":
        return None
    return PrivateStatistics(config.data.bounds, noise if config.privacy.level == "sample" else 0.0, source)


def measured(dataset: Dataset, partition: Partition, config: RunConfig) -> tuple[Dataset, Gathered | None]:
    """The data set as the clients' statistics scale and code it, and these; ``None``: it needs none.

    Raises:
        UsageError: no training row of any client has a number in some column.
    """
    kind, data = SampleKind() if dataset.is_encoded else dataset.kind, config.data
    classes = counted_classes(config, kind, len(dataset.classes))
    if dataset.is_encoded and not classes:
        return dataset, None
    held = {client: rows for client, rows in enumerate(partition.train) if len(rows)}
    rows = {client: dataset.training_rows(np.asarray(places), data.min_level) for client, places in held.items()}
    noise, secure = statistics_noise(config, kind), config.wire.secure_aggregation
    respondents = [
        Respondent(client, of_client, private_statistics(config, noise, SeededSource(derive(config.seed, client))), secure)
        for client, of_client in rows.items()
    ]
    gathered = gather(SimulatedRespondents(respondents), kind, config, classes)
    if dataset.is_encoded:
        return dataset, gathered
    return dataset.encoded(gathered.encoding, np.unique(np.concatenate(list(held.values())))), gathered


def note_on_statistics(gathered: Gathered, config: RunConfig) -> str:
    """A line on what clients send before round 1."""
    encoding, begin = gathered.encoding, "before round 1, each client sends"
    if config.privacy.level != "none":
        if not gathered.noise:
            return "the samples are scaled by the declared bounds alone (privacy.statistics_epsilon=0)"
        return "before round 1, noisy statistics of the training samples spend a part of epsilon (privacy.statistics_epsilon)"
    if encoding.columns:
        least = config.data.min_level
        what = (
            f"{begin} statistics of its training rows: sums and sums of squares of each column of numbers, and how many of its "
            f"rows have each level that at least {least} have (data.min_level)"
        )
        if encoding.classes:
            what += ", and each class"
    elif encoding.mean:
        what = f"{begin} statistics of its training samples: sums of their numbers and of the squares, by channel"
    else:
        what = f"{begin} the number of its training samples of each class (train.class_weights)"
    if config.wire.secure_aggregation:
        what += "; the server learns their sum over the clients alone, but each client's levels by name"
    return f"{what}; no epsilon covers them"
