"""The clients' data: one resident copy of the images, and who holds which.

The simulation uses these names: ``train``, ``split``, ``indices``, ``weights``, ``labels``, ``chunks``, ``size``,
``nonempty``, ``partition``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedpriv.data.partition import Partition
from fedpriv.data.sources import Dataset

Which = Literal["train", "validation", "test"]
Pool = Literal["train", "validation", "test", "server"]
"""``server``: the data set's own test split, whoever the clients' test images are taken from."""


class Split(NamedTuple):
    """A client's images ``(n, C, H, W)``, normalised float32, and labels ``(n,)`` int64."""

    images: Tensor
    labels: Tensor


class FederatedData:
    """A data set on the device (uint8, once) and its partition; a client's tensors are made when asked for."""

    def __init__(self, dataset: Dataset, partition: Partition, device: torch.device) -> None:
        self.dataset, self.partition, self.device = dataset, partition, device
        self._train = (dataset.train_images.to(device), dataset.train_labels.to(device))
        # Where a data set has no test split of its own, clients are tested on images held out of the training split.
        held_out = partition.test_split == "train"
        self._server = (dataset.test_images.to(device), dataset.test_labels.to(device))
        self._test = self._train if held_out else self._server
        shape = (1, -1, 1, 1)
        self._scale = (255 * torch.tensor(dataset.std)).reciprocal().view(shape).to(device)
        self._shift = (-torch.tensor(dataset.mean) / torch.tensor(dataset.std)).view(shape).to(device)
        lists = {"train": partition.train, "validation": partition.validation, "test": partition.test}
        self._indices = {which: [torch.as_tensor(held, device=device) for held in held_by] for which, held_by in lists.items()}
        weights = partition.test_weights
        self._test_weights = None if weights is None else torch.as_tensor(weights, device=device)
        self.nonempty = [client for client, held in enumerate(partition.train) if len(held)]

    def size(self, client: int) -> int:
        """Number of training samples n_i."""
        return len(self._indices["train"][client])

    def indices(self, which: Which, client: int) -> Tensor:
        """The client's samples, as positions in the pool of that split (``validation`` is part of the training pool)."""
        return self._indices[which][client]

    def split(self, which: Which, client: int) -> Split:
        """The client's tensors."""
        return self.pick(which, self._indices[which][client])

    def pick(self, which: Pool, index: Tensor) -> Split:
        """The samples at some positions ``(n,)`` of a whole pool."""
        images, labels = self._pool(which)
        return Split(self._normalise(images.index_select(0, index)), labels.index_select(0, index))

    def train(self, client: int) -> Split:
        """The client's training tensors."""
        return self.split("train", client)

    def weights(self, which: Which, client: int) -> Tensor | None:
        """Weight of each local test sample ``(n,)``, where clients are tested on more than their share; else ``None``."""
        if which != "test" or self._test_weights is None:
            return None
        return self._test_weights[client][self._test[1][self._indices["test"][client]]]

    def labels(self, which: Pool) -> Tensor:
        """Labels of the whole pool ``(N,)``."""
        return self._pool(which)[1]

    def chunks(self, which: Pool, size: int) -> Iterator[Tensor]:
        """The whole pool's images, normalised, ``size`` at a time."""
        for part in torch.split(self._pool(which)[0], size):
            yield self._normalise(part)

    def _pool(self, which: Pool) -> tuple[Tensor, Tensor]:
        return {"server": self._server, "test": self._test}.get(which, self._train)

    @property
    def clients_share_the_server_test_set(self) -> bool:
        """Whether the clients' local test images are those of the server's test set."""
        return self._test is self._server

    def _normalise(self, images: Tensor) -> Tensor:
        return torch.addcmul(self._shift, images.float(), self._scale)
