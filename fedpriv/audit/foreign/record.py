"""A recorded federation as what an audit reads: each message is an update of the recorded net."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.api import tensors
from fedpriv.attacks.api.inversion import check_normalisation
from fedpriv.attacks.api.label_rules import balanced
from fedpriv.attacks.api.user_net import UserNet, cut
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.labels import Samples
from fedpriv.attacks.scoring.guessing import most_common_share
from fedpriv.audit.record.base import Message, PlainChange, PublicImages, Record, Truth
from fedpriv.audit.record.traffic import IN_TRANSIT, has_batch_norm, net_conditions
from fedpriv.audit.record.update import UpdateRecord
from fedpriv.audit.results import AuditedRun, Cost, Part, RoundTraffic, Sender, TensorInfo, Wire
from fedpriv.defenses import build_transforms
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.models.user_net.importing import find_user_net
from fedpriv.recorder.reader import Recorded
from fedpriv.wire import Transform

NO_SHADOWS = Reason("not available", "a record has no clients to simulate")
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
    cannot_simulate = NO_SHADOWS
    doubt: str | None = None
    """A clause on how local training differs from what is declared; ``None``: it is not known to differ."""

    def __init__(self, folder: Path, model: nn.Module | None = None, seed: int = 0) -> None:
        self.recorded = Recorded(folder)
        facts = self.facts = self.recorded.facts
        self.name, self.seed, self.modalities = facts.name, seed, ("image",)
        self.classes, self.input_shape = facts.classes, facts.input_shape
        try:
            check_normalisation(facts.mean, facts.std, facts.input_shape[0])
            self.model = (model or self._named_net()).cpu().float()
            self.net: UserNet = cut(self.model, facts.input_shape, facts.head)
        except ValueError as error:
            raise UsageError(f"{folder}: {error}") from None
        if self.net.classes != facts.classes:
            raise UsageError(f"{folder}: the net returns {self.net.classes} logits, and the record has {facts.classes} classes")
        self.transforms: Sequence[Transform] = build_transforms(facts.transforms or ())
        self._number = {name: number for number, name in enumerate(self.recorded.clients)}
        self._read: Callable[[int, int], _Read] = lru_cache(_HELD)(self._reading)
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
        self.public_images()

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
            payload=None, data=truth, schedule=schedule, mean=self.facts.mean, std=self.facts.std, public=self.public_images(),
            transforms=self.transforms,
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
        """The client's steps.

        Raises:
            UsageError: they are not known, or are not those of SGD.
        """
        training = self.facts.training
        steps = training.steps(samples)
        if training.optimizer != "sgd" or training.lr is None or steps is None:
            raise UsageError(
                f"{self.recorded.folder}: attacks read a change as that of SGD steps, and the record's training says no lr and "
                "local_epochs or local_steps of sgd"
            )
        size = min(training.batch_size or samples, samples)
        return Schedule(training.lr, steps, size, training.momentum, training.weight_decay, training.weight_decay)

    def sender(self, round: int, client: int) -> Sender:
        return Sender(client, name=self.client_name(client))

    def observation(self, message: Message, threat: ThreatModel, what: str = "") -> Observation:
        update = self.update(message)
        if message.uploaded is not self.message(message.round, message.client).uploaded:  # of a simulated client
            change = {name: message.uploaded[name] - message.received[name] for name in update.sent.parameters}
            update = replace(update, sent=tensors.Message(change, {}))
        seen = update.observation(message, threat, what)
        return seen if self.doubt is None else replace(seen, control_differences=(*seen.control_differences, self.doubt))

    def started(self, message: Message, what: str = "") -> Mapping[str, Tensor]:
        return self.update(message).started(message, what)

    def plain_change(self, message: Message) -> PlainChange:
        return self.update(message).plain_change(message)

    def truth(self, client: int) -> Truth:
        samples = self.recorded.truth(self.client_name(client))
        assert samples is not None, "only clients whose samples were recorded are attacked"
        return Truth(samples["images"].float(), samples["labels"].long())

    def labels(self, client: int) -> Tensor:
        return self.truth(client).labels

    def set_guess(self, true: Tensor) -> float:
        known = dict.fromkeys(client for _, client in self._attackable)
        present = [torch.bincount(self.labels(client), minlength=self.classes) > 0 for client in known]
        return most_common_share(torch.stack(present))

    def public_images(self) -> PublicImages:
        return self._public

    @cached_property
    def _public(self) -> PublicImages:
        public = self.recorded.public()
        return (None, None) if public is None else (public["images"].float(), public["labels"].long())

    def public_samples(self) -> Samples | None:
        images, labels = self.public_images()
        if images is None or labels is None:
            return None
        chosen = balanced(labels, self.classes)
        return Samples(self.normalised(images[chosen]), labels[chosen])

    def normalised(self, images: Tensor) -> Tensor:
        """Images in [0, 1] as the net takes them."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.facts.mean, self.facts.std))
        return (images - mean) / std

    def not_run(self) -> dict[Part, Reason]:
        parts = super().not_run()
        del parts["membership"]  # by the regression on gradients, which simulates no client
        return parts

    def run_facts(self) -> AuditedRun:
        """What the record says without attacks."""
        facts, lines = self.facts, self.recorded.lines.values()
        rounds = sorted({line.round for line in lines})
        traffic = [RoundTraffic(round, self._bytes(round, "up"), self._bytes(round, "down")) for round in rounds]
        where = f" of {facts.framework}" if facts.framework else ""
        knows = [
            "has every recorded message",
            "knows the architecture and the schedule of local training that the record declares",
        ]
        if any(line.num_examples is not None for line in lines):
            knows.append("receives each client's number of training samples")
        return AuditedRun(
            source="record",
            name=facts.name,
            run_id=facts.name,
            run_dir=str(self.recorded.folder),
            method=f"recorded federation{where}",
            title=f"A federation{where}, as it was recorded",
            dataset=f"images of {'x'.join(map(str, facts.input_shape))}",
            model=facts.net or type(self.model).__name__,
            modalities=self.modalities,
            seed=self.seed,
            clients=len(self.recorded.clients),
            participants=max(len([m for m in self.recorded.answered() if m[0] == round]) for round in rounds),
            rounds=len(rounds),
            defence=tuple(str(transform) for transform in self.transforms),
            cost=Cost(bytes_up=sum(it.bytes_up for it in traffic), bytes_down=sum(it.bytes_down for it in traffic)),
            wire=Wire(tuple(self._tensors()), rounds=tuple(traffic)),
            server_knows=tuple(knows),
            outsider_knows=IN_TRANSIT,
            conditions=net_conditions(self.net.split),
            batch_norm=has_batch_norm(self.net.split),
        )

    def _bytes(self, round: int, direction: str) -> int:
        lines = [line for line in self.recorded.lines.values() if (line.round, line.direction) == (round, direction)]
        return sum(line.nbytes or (self.recorded.folder / line.file).stat().st_size for line in lines)

    def _tensors(self) -> list[TensorInfo]:
        return list(self.update(self.message(*self._attackable[0])).tensor_infos())


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
