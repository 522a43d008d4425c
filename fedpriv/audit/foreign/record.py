"""A recorded federation as what an audit reads: each message is an update of the recorded net."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.api import tensors
from fedpriv.attacks.api.inversion import check_normalisation
from fedpriv.attacks.api.label_rules import balanced
from fedpriv.attacks.api.user_net import UserNet, cut
from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.inference.labels import Samples
from fedpriv.attacks.scoring.guessing import most_common_share
from fedpriv.audit.foreign.texts import facts_of, token_probe
from fedpriv.audit.record.base import Message, PlainChange, PublicImages, Record, Truth
from fedpriv.audit.record.update import UpdateRecord
from fedpriv.audit.results import Sender
from fedpriv.data.federated import Split
from fedpriv.defenses import build_transforms
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.models.text.pretrained import find_encoder
from fedpriv.models.user_net.importing import find_user_net
from fedpriv.recorder import layout
from fedpriv.recorder.layout import Facts
from fedpriv.recorder.layout import Samples as Kind
from fedpriv.recorder.reader import Recorded
from fedpriv.samples import Modality
from fedpriv.wire import Transform

_MODALITIES: Mapping[Kind, tuple[Modality, ...]] = {"images": ("image",), "rows": (), "texts": ("text",)}
_HELD = 4
"""Messages that are kept in memory; each holds the net twice."""


@dataclass(frozen=True)
class _Read:
    """A message, and the same as an update of the net at the weights that were sent."""

    update: UpdateRecord
    message: Message


class FolderRecord(Record):
    """A record in a folder.

    Messages that can be attacked are those whose download was recorded, too, and whose client's samples were.

    Args:
        model: the net, with any weights, in the mode in which clients train; ``None``: the record names it.

    Raises:
        UsageError: the record names no net, its net does not fit its messages, or no message can be attacked.
        Damaged: a file is not what was written.
    """

    declared = True
    doubts: tuple[str, ...] = ()
    """Clauses on how messages differ from those of every attack's controls."""

    def __init__(self, folder: Path, model: nn.Module | None = None, seed: int = 0) -> None:
        self.recorded = Recorded(folder)
        facts = self.facts = self.recorded.facts
        self.name, self.seed, self.modalities = facts.name, seed, _MODALITIES[facts.samples]
        self.classes, self.input_shape, self.encoding = facts.classes, facts.input_shape, _encoding(facts)
        self.encoder = None if facts.encoder is None else find_encoder(facts.encoder, ())
        try:
            check_normalisation(facts.mean, facts.std, facts.input_shape[0] if facts.samples == "images" else 1)
            self.model = (model or self._named_net()).cpu().float()
            probe = None if self.encoder is None else token_probe(self.encoder, facts.input_shape[0])
            self.net: UserNet = cut(self.model, facts.input_shape, facts.head, probe)
        except ValueError as error:
            raise UsageError(f"{folder}: {error}") from None
        if self.net.classes != facts.classes:
            raise UsageError(f"{folder}: the net returns {self.net.classes} logits, and the record has {facts.classes} classes")
        self.text = None if self.encoder is None else facts_of(self.net, self.encoder, facts.input_shape[0])
        self.transforms: Sequence[Transform] = build_transforms(facts.transforms or ())
        self._labels = dict[int, Tensor]()
        self._number = {name: number for number, name in enumerate(self.recorded.clients)}
        self._read: Callable[[int, int], _Read] = lru_cache(_HELD)(self._reading)
        self._samples: Callable[[int], Truth] = lru_cache(_HELD)(self._truth)
        if not self._attackable:
            raise UsageError(
                f"{folder}: no message can be attacked: none has its download and its client's samples beside it; fedpriv record "
                "check says what is missing"
            )

    def _named_net(self) -> nn.Module:
        if self.facts.net is None:
            raise UsageError(
                f"{self.recorded.folder} names no net; fedpriv.audit(folder, model=net), or --model package.module:Name"
            )
        return build_net(self.facts.net, self.facts.arguments)

    @cached_property
    def _attackable(self) -> list[tuple[int, int]]:
        with_truth = {client for client in self.recorded.clients if self.recorded.has_truth(client)}
        return [
            (round, self._number[client])
            for round, client in self.recorded.answered()
            if client in with_truth and (round, client, "down") in self.recorded.lines
        ]

    def verify(self) -> None:
        """Read every message, and the samples.

        Raises:
            Damaged: a file is not what was written, or its tensors do not fit the net.
        """
        for message in self.messages():
            self._reading(*message)
        self.server_labels()

    def client_name(self, client: int) -> str:
        """The name of a client by its number."""
        return self.recorded.clients[client]

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        return [m for m in self._attackable if round in (None, m[0]) and client in (None, m[1])]

    def message(self, round: int, client: int) -> Message:
        return self._read(round, client).message

    def update(self, message: Message) -> UpdateRecord:
        """A message as one update of the net at the weights that were sent."""
        return self._read(message.round, message.client).update

    def _reading(self, round: int, client: int) -> _Read:
        name, where = self.client_name(client), f"{self.recorded.folder}: client {self.client_name(client)}, round {round}"
        down, up = (self.recorded.tensors(round, name, direction) for direction in ("down", "up"))
        assert down is not None and up is not None, "both were recorded"
        line = self.recorded.lines[round, name, "up"]
        try:
            sent = tensors.read_message(self.model, _in_order(down))
            answer = tensors.read_message(self.model, _in_order(up))
        except ValueError as error:
            raise Damaged(f"{where}: {error}") from None
        net = self._loaded(sent)
        start = {key: parameter.detach() for key, parameter in net.named_parameters()}
        change, uploaded = dict(answer.parameters), dict(answer.parameters)  # a gradient stands in the place of both
        if line.kind == "weights":
            change = {key: tensor - start[key] for key, tensor in uploaded.items()}
        elif line.kind == "change":
            uploaded = {key: start[key] + tensor for key, tensor in change.items()}
        truth = self.truth(client)
        schedule = None if line.kind == "gradient" else self._schedule(line.num_examples or len(truth.labels))
        update = UpdateRecord(
            name=self.name, seed=self.seed, model=net, net=self.net, sent=tensors.Message(change, answer.buffers), besides={},
            payload=None, data=truth, schedule=schedule, is_change=line.kind != "gradient", mean=self.facts.mean,
            std=self.facts.std, public=self._public, transforms=self.transforms, encoding=self.encoding, text=self.text,
        )  # fmt: skip
        message = Message(round, client, dict(sent.parameters), {**uploaded, **answer.buffers}, line.num_examples)
        return _Read(update, message)

    def _loaded(self, sent: tensors.Message) -> nn.Module:
        """The net with the weights and buffers that were sent."""
        net = copy.deepcopy(self.model)
        with torch.no_grad():
            state = dict(net.named_parameters()) | dict(net.named_buffers())
            for name, tensor in (*sent.parameters.items(), *sent.buffers.items()):
                state[name].copy_(tensor)
        return net

    def _schedule(self, samples: int) -> Schedule | None:
        """The client's steps; ``None``: they are not known, or are not those of SGD."""
        training = self.facts.training
        steps = training.steps(samples)
        if training.optimizer != "sgd" or training.lr is None or steps is None:
            return None
        size = min(training.batch_size or samples, samples)
        return Schedule(training.lr, steps, size, training.momentum, training.weight_decay, training.weight_decay)

    def sender(self, round: int, client: int) -> Sender:
        return Sender(client, name=self.client_name(client))

    def observation(self, message: Message, threat: ThreatModel, what: str = "") -> Observation:
        update, samples = self.update(message), len(self.labels(message.client))
        if message.first_update and message.num_examples is not None:  # of a simulated client
            samples = message.num_examples
        schedule = None if update.schedule is None else self._schedule(samples)
        seen = update.seen(self._change(message, update), threat, schedule, samples)
        return replace(seen, control_differences=(*seen.control_differences, *self.doubts))

    def started(self, message: Message, what: str = "") -> Mapping[str, Tensor]:
        return self.update(message).started(message, what)

    def _change(self, message: Message, update: UpdateRecord) -> Mapping[str, Tensor]:
        """The change behind a message, or its gradient."""
        if not message.first_update:
            return update.sent.parameters
        if not update.is_change:
            return message.uploaded
        return {name: message.uploaded[name] - tensor for name, tensor in self.start(message).items() if name in message.uploaded}

    def start(self, message: Message) -> dict[str, Tensor]:
        """The parameters at which the client began, by the net's names."""
        return {name: parameter.detach() for name, parameter in self.update(message).model.named_parameters()}

    def plain_change(self, message: Message) -> PlainChange:
        return PlainChange(self._change(message, self.update(message)))

    def parameters(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    def truth(self, client: int) -> Truth:
        return self._samples(client)

    def _truth(self, client: int) -> Truth:
        samples = self.recorded.truth(self.client_name(client))
        assert samples is not None, "only clients whose samples were recorded are attacked"
        return self._read_samples(samples)

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

    def holders(self) -> list[int]:
        return list(dict.fromkeys(client for _, client in self._attackable))

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


def _encoding(facts: Facts) -> RowEncoding | None:
    columns = tuple(
        CategoryColumn(**asdict(column)) if isinstance(column, layout.CategoryColumn) else NumberColumn(**asdict(column))
        for column in facts.columns
    )
    return RowEncoding(columns) if columns else None


def _in_order(given: Mapping[str, Tensor]) -> Mapping[str, Tensor] | Sequence[Tensor]:
    """Tensors by name, or, if all names are numbers, in their order."""
    if all(name.isdecimal() for name in given):
        return [given[name] for name in sorted(given, key=int)]
    return given


def build_net(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The net of a class or function that is named ``package.module:Name``.

    Raises:
        UsageError: there is none, or it returns something else.
        FedprivError: it fails.
    """
    build: Callable[..., Any] = find_user_net(name)
    try:
        net = build(**arguments)
    except Exception as error:
        raise FedprivError(f"the net {name} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Module):
        raise UsageError(f"the net {name} is a {type(net).__name__}, and no nn.Module")
    return net
