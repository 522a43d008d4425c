"""The samples of a record: those of clients, against which attacks are scored, and public ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.api.label_rules import balanced
from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding
from fedpriv.attacks.inference.labels import Samples
from fedpriv.attacks.scoring.guessing import most_common_share
from fedpriv.audit.record.base import PublicImages, Record, Truth
from fedpriv.data.federated import Split
from fedpriv.models.text.pretrained import find_encoder
from fedpriv.recorder import layout
from fedpriv.recorder.reader import Recorded
from fedpriv.samples import Modality

_MODALITIES: Mapping[layout.Samples, tuple[Modality, ...]] = {"images": ("image",), "rows": (), "texts": ("text",)}
_HELD = 4
"""Clients whose samples are kept in memory."""


class RecordedSamples(Record):
    """The samples that a record holds.

    Raises:
        UsageError: the encoder of its texts is not available.
    """

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self.recorded = recorded
        facts = self.facts = recorded.facts
        self.name, self.seed, self.modalities = facts.name, seed, _MODALITIES[facts.samples]
        self.classes, self.input_shape, self.encoding = facts.classes, facts.input_shape, _encoding(facts)
        self.encoder = None if facts.encoder is None else find_encoder(facts.encoder, ())
        self._labels = dict[int, Tensor]()
        self._samples: Callable[[int], Truth] = lru_cache(_HELD)(self._truth)

    def client_name(self, client: int) -> str:
        """The name of a client by its number."""
        return self.recorded.clients[client]

    def truth(self, client: int) -> Truth:
        return self._samples(client)

    def _truth(self, client: int) -> Truth:
        members = self.of_members(client)
        return Truth(torch.cat([it.images for it in members]), torch.cat([it.labels for it in members]))

    def of_members(self, client: int) -> list[Truth]:
        """The samples of each client behind a message."""
        each = [self.recorded.truth(name) for name in self.recorded.behind(self.client_name(client))]
        return [self._read_samples(samples) for samples in each if samples is not None]

    def _read_samples(self, samples: Mapping[str, Tensor]) -> Truth:
        inputs = samples[self.facts.samples]
        if self.encoder is not None:
            inputs = F.pad(inputs.long(), (0, self.input_shape[0] - inputs.shape[1]), value=self.encoder.pad)
        return Truth(inputs if self.encoder is not None else inputs.float(), samples["labels"].long())

    def rows(self, client: int) -> Tensor:
        return self.truth(client).images

    def texts(self, client: int) -> Tensor:
        return self.truth(client).images

    def labels(self, client: int) -> Tensor:
        if client not in self._labels:
            self._labels[client] = self.truth(client).labels
        return self._labels[client]

    def set_guess(self, true: Tensor) -> float:
        return most_common_share(self.label_sets(self.holders()))

    def public_images(self) -> PublicImages:
        return self._public if self.facts.samples == "images" else (None, None)

    def public_rows(self) -> Tensor:
        rows, _ = self._public
        return torch.empty(0, *self.input_shape) if rows is None else rows

    def public_texts(self) -> Tensor:
        return self.public_rows().long()

    @cached_property
    def _public(self) -> PublicImages:
        if (public := self.recorded.public()) is None:
            return None, None
        samples = self._read_samples(public)
        return samples.images, samples.labels

    def server_labels(self) -> Tensor:
        _, labels = self._public
        return torch.empty(0, dtype=torch.long) if labels is None else labels

    def server_samples(self, index: Tensor) -> Split:
        samples, labels = self._public
        assert samples is not None and labels is not None, "there are labels at these positions"
        return Split(self.as_input(samples[index]), labels[index])

    def public_samples(self) -> Samples | None:
        chosen = balanced(self.server_labels(), self.classes)
        if not len(chosen):
            return None
        public = self.server_samples(chosen)
        assert isinstance(public.inputs, Tensor), "samples of a record are no pairs"
        return Samples(public.inputs, public.labels)

    def as_input(self, samples: Tensor) -> Tensor:
        """Recorded samples as the net takes them: images in [0, 1] are normalised."""
        if self.facts.samples != "images":
            return samples
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.facts.mean, self.facts.std))
        return (samples - mean) / std


def _encoding(facts: layout.Facts) -> RowEncoding | None:
    columns = tuple(
        CategoryColumn(**asdict(column)) if isinstance(column, layout.CategoryColumn) else NumberColumn(**asdict(column))
        for column in facts.columns
    )
    return RowEncoding(columns) if columns else None
