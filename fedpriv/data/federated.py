"""The clients' data: one copy of the samples on the device, and the partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedpriv.data.dataset import Dataset
from fedpriv.data.partition_rules import Indices
from fedpriv.data.partitions.partition import Partition
from fedpriv.data.pools import Pool
from fedpriv.samples import Inputs, Modality, join, take, without

Which = Literal["train", "validation", "test"]
Whole = Literal["train", "validation", "test", "server"]
"""``server``: the data set's own test split, wherever the clients' test samples are taken from."""


class Split(NamedTuple):
    """A client's samples (:mod:`fedpriv.samples`) and their labels ``(n,)``: int64, or standardised numbers, float32."""

    inputs: Inputs
    labels: Tensor

    def at(self, index: Tensor) -> Split:
        """The samples at positions ``(m,)``."""
        return Split(take(self.inputs, index), self.labels.index_select(0, index))

    def followed_by(self, others: Split) -> Split:
        """These samples followed by others of the same kind."""
        return Split(join([self.inputs, others.inputs]), torch.cat([self.labels, others.labels]))


class FederatedData:
    """A data set on the device (once) and its partition; a client's tensors are made on access.

    Args:
        train, test: the data set's splits as inputs of the net.
        lacks: for image-text pairs, the modality that a client lacks, by client.
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        device: torch.device,
        train: Pool,
        test: Pool,
        lacks: dict[int, Modality] | None = None,
    ) -> None:
        self.dataset, self.partition, self.device, self._lacks = dataset, partition, device, lacks or {}
        self._train = (train, dataset.train_labels.to(device))
        # Where a data set has no test split of its own, clients are tested on samples held out of the training split.
        held_out = partition.test_split == "train"
        self._server = (test, dataset.test_labels.to(device))
        self._test = self._train if held_out else self._server
        self._strata = dataset.strata[0 if held_out else 1].to(device)
        lists = {"train": partition.train, "validation": partition.validation, "test": partition.test}
        self._indices = {which: _on_device(held_by, device) for which, held_by in lists.items()}
        weights = partition.test_weights
        self._test_weights = None if weights is None else torch.as_tensor(weights, device=device)
        self.nonempty = [client for client, held in enumerate(partition.train) if len(held)]

    def with_unions(self, unions: Mapping[int, Sequence[int]]) -> FederatedData:
        """A copy in which each of these numbers, beyond those of the clients, holds the training samples of some clients."""
        whole, held = copy(self), list(self._indices["train"])
        held += [held[0][:0]] * (max(unions, default=-1) + 1 - len(held))
        for number, clients in unions.items():
            held[number] = torch.cat([held[client] for client in clients])
        whole._indices = {**self._indices, "train": held}
        return whole

    def size(self, client: int) -> int:
        """Number of training samples n_i."""
        return len(self._indices["train"][client])

    @property
    def sizes(self) -> dict[int, int]:
        """Client -> number of training samples, of those that hold some."""
        return {client: self.size(client) for client in self.nonempty}

    def indices(self, which: Which, client: int) -> Tensor:
        """The client's samples, as positions in the pool of that split (``validation`` is part of the training pool)."""
        return self._indices[which][client]

    def split(self, which: Which, client: int) -> Split:
        """The client's tensors; for pairs, of the modalities that it has."""
        split = self.pick(which, self._indices[which][client])
        return split._replace(inputs=without(split.inputs, self.lacking(client)))

    def pick(self, which: Whole, index: Tensor) -> Split:
        """The samples at some positions ``(n,)`` of a whole pool."""
        samples, labels = self._pool(which)
        return Split(samples.pick(index), labels.index_select(0, index))

    def train(self, client: int) -> Split:
        """The client's training tensors."""
        return self.split("train", client)

    def weights(self, which: Which, client: int) -> Tensor | None:
        """Weight of each local test sample ``(n,)`` where clients are tested on all images of their classes; else ``None``."""
        if which != "test" or self._test_weights is None:
            return None
        return self._test_weights[client][self._strata[self._indices["test"][client]]]

    def labels(self, which: Whole) -> Tensor:
        """Labels of the whole pool ``(N,)``."""
        return self._pool(which)[1]

    def chunks(self, which: Whole, size: int) -> Iterator[Inputs]:
        """The whole pool as inputs of the net, ``size`` samples at a time."""
        samples, _ = self._pool(which)
        for start in range(0, len(samples), size):
            yield samples.pick(slice(start, start + size))

    def _pool(self, which: Whole) -> tuple[Pool, Tensor]:
        return {"server": self._server, "test": self._test}.get(which, self._train)

    def lacking(self, client: int) -> Modality | None:
        """For pairs, the modality that the client lacks."""
        return self._lacks.get(client)

    @property
    def are_pairs(self) -> bool:
        """Whether the samples are image-text pairs."""
        return self.dataset.images is not None and self.dataset.texts is not None

    @property
    def clients_share_the_server_test_set(self) -> bool:
        """Whether the clients' local test samples are those of the server's test set."""
        return self._test is self._server


@dataclass(frozen=True)
class ClientData:
    """One client's part of the data."""

    of: FederatedData
    client: int

    def train(self) -> Split:
        """Its training tensors; of pairs, those of the modalities that it has."""
        return self.of.train(self.client)

    def size(self, which: Which) -> int:
        """How many samples of a split it has."""
        return len(self.of.indices(which, self.client))

    def chunks(self, which: Which, size: int) -> Iterator[Split]:
        """Its samples of a split, so many at a time."""
        for part in torch.split(self.of.indices(which, self.client), size):
            split = self.of.pick(which, part)
            yield split._replace(inputs=without(split.inputs, self.lacking))

    def weights(self, which: Which) -> Tensor | None:
        """How much each sample counts in a test ``(n,)``; ``None``: all the same."""
        return self.of.weights(which, self.client)

    @property
    def lacking(self) -> Modality | None:
        """For pairs, the modality that it lacks."""
        return self.of.lacking(self.client)


def _on_device(held_by: Sequence[Indices], device: torch.device) -> list[Tensor]:
    """Each client's positions as a tensor. Clients that share an array, such as the empty one, share its tensor."""
    tensors = {id(held): torch.as_tensor(held, device=device) for held in {id(held): held for held in held_by}.values()}
    return [tensors[id(held)] for held in held_by]
