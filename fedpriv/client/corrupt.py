"""Bad clients of a simulation: they train on flipped labels, or send another update than the trained one.

They show how robust an aggregation is. They are tested on their real labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.client.client import Client, OwnData
from fedpriv.client.receiving import Received
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.config.data import Corruption
from fedpriv.data.augmentation.augment import Augment
from fedpriv.data.federated import Split, Which
from fedpriv.seeding import generator
from fedpriv.wire import Payload

FACTOR = 10.0
"""How much larger a scaled update is, and the noise than the root mean square of the update."""


def corrupt_clients(config: RunConfig) -> frozenset[int]:
    """The bad clients: the config's share of the registered ones, drawn by the partition's seed."""
    data = config.data
    if not data.corrupt_clients:  # a million registered clients are not put in order for nothing
        return frozenset()
    rng = generator(data.partition.seed or 0, "corrupt clients")
    return frozenset(torch.randperm(data.clients, generator=rng)[: round(data.corrupt_clients * data.clients)].tolist())


def note_on_corruption(config: RunConfig) -> str | None:
    """A line on the bad clients, if there are some."""
    if not (bad := corrupt_clients(config)):
        return None
    does = {"labels": "train on flipped labels", "sign": "send their update with the other sign"}
    does |= {"scale": f"send {FACTOR:g} times their update", "noise": "send their update with noise"}
    return f"clients {', '.join(map(str, sorted(bad)))} are bad: they {does[config.data.corruption]}"


class FlippedLabels:
    """A client's samples, whose training labels c are C - 1 - c of C classes (Fang et al., USENIX Security 2020)."""

    def __init__(self, data: OwnData, classes: int) -> None:
        self._data, self._classes = data, classes
        self.size, self.weights = data.size, data.weights

    def train(self) -> Split:
        """The training samples."""
        split = self._data.train()
        return split._replace(labels=self._classes - 1 - split.labels)

    def chunks(self, which: Which, size: int) -> Iterator[Split]:
        """The samples of a split, ``size`` at a time, with their real labels."""
        return self._data.chunks(which, size)


class CorruptClient(Client):
    """A client that trains as the others do, and sends another update d of the parameters.

    -d (``sign``), :data:`FACTOR` d (``scale``), or d with Gaussian noise (``noise``), whose standard deviation in each tensor is
    :data:`FACTOR` times the root mean square of d. ``labels`` sends d.
    """

    def __init__(
        self,
        kind: Corruption,
        number: int,
        agreement: Agreement,
        data: OwnData,
        store: ClientStore | None,
        augment: Augment | None,
    ) -> None:
        super().__init__(number, agreement, data, store, augment)
        self.kind = kind

    def alter(self, payload: Payload, received: Received) -> Payload:
        parameters = {entry.name for entry in self.agreement.space.entries if entry.kind != "buffer"}
        rng = generator(self.agreement.config.seed, received.round, self.number, "corruption")

        def changed(name: str, sent: Tensor) -> Tensor:
            start = received.tensors.get(name)
            if self.kind == "labels" or name not in parameters or start is None:
                return sent
            update = sent - start
            if self.kind == "noise":
                noise = torch.randn(update.shape, generator=rng).to(update)
                return sent + FACTOR * update.square().mean().sqrt() * noise
            return start + (-1 if self.kind == "sign" else FACTOR) * update

        return replace(payload, tensors={name: changed(name, tensor) for name, tensor in payload.tensors.items()})
