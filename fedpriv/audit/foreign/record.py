"""A recorded federation as what an audit reads: each message is an update of the recorded net."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.api import tensors
from fedpriv.attacks.api.inversion import check_normalisation
from fedpriv.attacks.api.user_net import UserNet, cut
from fedpriv.attacks.core.observation import Observation, Passes, Schedule, ThreatModel
from fedpriv.audit.foreign.nets import GivenNet, net_of
from fedpriv.audit.foreign.program import Program
from fedpriv.audit.foreign.samples import RecordedSamples
from fedpriv.audit.foreign.texts import facts_of, token_probe
from fedpriv.audit.record.base import Message, PlainChange
from fedpriv.audit.record.statistics import RUNNING, listed
from fedpriv.audit.record.update import UpdateRecord, code_of
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.results.wire import Statistic
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.recorder.layout import Line
from fedpriv.recorder.reader import Recorded
from fedpriv.wire import Transform
from fedpriv.wire.coding import is_model

_HELD = 256 * 2**20
"""Bytes of the messages that are kept in memory."""


@dataclass(frozen=True)
class _Read:
    """A message, and the same as an update of the net at the weights that were sent."""

    update: UpdateRecord
    message: Message


class FolderRecord(RecordedSamples):
    """A record in a folder.

    Messages that can be attacked are those whose download was recorded, too, and whose client's samples were.

    Args:
        model: the net, with any weights, in the mode in which clients train, see :func:`fedpriv.audit.foreign.nets.net_of`.

    Raises:
        UsageError: the record names no net, its net does not fit its messages, or no message can be attacked.
        Damaged: a file is not what was written.
    """

    declared = True
    doubts: tuple[str, ...] = ()
    """Clauses on how messages differ from those of every attack's controls."""
    held: int
    """How many messages are kept in memory."""

    def __init__(self, folder: Path, model: GivenNet = None, seed: int = 0) -> None:
        super().__init__(Recorded(folder), seed)
        facts = self.facts
        try:
            check_normalisation(facts.mean, facts.std, facts.input_shape[0] if facts.samples == "images" else 1)
            self.model = net_of(self.recorded, model, self.encoder).cpu().float()
            probe = None if self.encoder is None else token_probe(self.encoder, facts.input_shape[0])
            self.net: UserNet = cut(self.model, facts.input_shape, facts.head, probe)
        except ValueError as error:
            raise UsageError(f"{folder}: {error}") from None
        if self.net.classes != facts.classes:
            raise UsageError(f"{folder}: the net returns {self.net.classes} logits, and the record has {facts.classes} classes")
        self.text = None if self.encoder is None else facts_of(self.net, self.encoder, facts.input_shape[0])
        self.transforms: Sequence[Transform] = build_transforms(facts.transforms or ())
        self.delta = max((line.delta for line in self.recorded.lines.values() if line.delta is not None), default=self.delta)
        self.summed = bool(self.recorded.sums)
        if self.summed and len(self.recorded.sums) < len(self.recorded.clients):
            raise UsageError(f"{folder} holds sums and answers of single clients; record each into a folder of its own")
        self._number = {name: number for number, name in enumerate(self.recorded.clients)}
        each = 4 * sum(tensor.nbytes for tensor in self.model.state_dict().values())  # down, up, the net and the change
        self.held = min(max(2, _HELD // max(each, 1)), 64)
        self._read: Callable[[int, int], _Read] = lru_cache(self.held)(self._reading)
        if not self._attackable:
            raise UsageError(
                f"{folder}: no message can be attacked, as none was recorded with its download and its client's samples; fedpriv "
                "record check says what is missing"
            )

    @cached_property
    def _attackable(self) -> list[tuple[int, int]]:
        with_truth = {client for client in self.recorded.clients if self.recorded.has_truth(client)}
        return [
            (round, self._number[client])
            for round, client in self.recorded.answered()
            if client in with_truth and self.recorded.received(round, client) is not None
        ]

    def verify(self) -> None:
        """Read the file of every message, and the samples, one at a time.

        Raises:
            Damaged: a file is not what was written, or its tensors do not fit the net.
        """
        lines = (line for message in self.messages() for line in self._lines(*message))
        for line in {(line.file, line.sha256): line for line in lines}.values():
            self._matched(line)
        for client in self.holders():
            self.labels(client)
        self.server_labels()

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        return [m for m in self._attackable if round in (None, m[0]) and client in (None, m[1])]

    def message(self, round: int, client: int) -> Message:
        return self._read(round, client).message

    def update(self, message: Message) -> UpdateRecord:
        """A message as one update of the net at the weights that were sent."""
        return self._read(message.round, message.client).update

    def _lines(self, round: int, client: int) -> tuple[Line, Line]:
        """What a client was sent, and its answer."""
        name = self.client_name(client)
        down, up = self.recorded.received(round, name), self.recorded.lines[round, name, "up"]
        assert down is not None, "it was recorded"
        return down, up

    def _matched(self, line: Line) -> tuple[tensors.Message, dict[str, Tensor]]:
        """The tensors of a message by the net's names, and what was sent besides the net."""
        given = self.recorded.tensors_of(line)
        besides = {name: tensor for name, tensor in given.items() if not is_model(name)}
        of_net = {name: tensor for name, tensor in given.items() if name not in besides}
        try:
            by_place = any(name.isdecimal() for name in of_net)
            if by_place and isinstance(self.model, Program) and not self.model.is_ordered:
                raise ValueError("tensors are named by their positions, and a program keeps no order of a net's buffers")
            return tensors.read_message(self.model, _in_order(of_net)), besides
        except ValueError as error:
            raise Damaged(f"{self.recorded.folder}: client {line.client}, round {line.round}: {error}") from None

    def _reading(self, round: int, client: int) -> _Read:
        down, line = self._lines(round, client)
        sent, _ = self._matched(down)
        answer, besides = self._matched(line)
        net = self._loaded(sent)
        start = {key: parameter.detach() for key, parameter in net.named_parameters()}
        change, uploaded = dict(answer.parameters), dict(answer.parameters)  # a gradient stands in the place of both
        if line.kind == "weights":
            change = {key: tensor - start[key] for key, tensor in uploaded.items()}
        elif line.kind == "change":
            uploaded = {key: start[key] + tensor for key, tensor in change.items()}
        truth = self.truth(client)
        parts, samples = len(line.members) or 1, line.num_examples or len(truth.labels)
        schedule = None if line.kind == "gradient" else self._schedule(samples, parts)
        update = UpdateRecord(
            name=self.name, seed=self.seed, model=net, net=self.net, sent=tensors.Message(change, answer.buffers),
            besides=besides, payload=None, data=truth, schedule=schedule, is_change=line.kind != "gradient", mean=self.facts.mean,
            std=self.facts.std, public=self._public, transforms=self.transforms, encoding=self.encoding, text=self.text,
        )  # fmt: skip
        everything = {**uploaded, **answer.buffers, **besides}
        message = Message(round, client, {**sent.parameters, **sent.buffers}, everything, line.num_examples, parts=parts)
        return _Read(update, message)

    def _loaded(self, sent: tensors.Message) -> nn.Module:
        """The net with the weights and buffers that were sent."""
        net = copy.deepcopy(self.model)
        with torch.no_grad():
            state = dict(net.named_parameters()) | dict(net.named_buffers())
            for name, tensor in (*sent.parameters.items(), *sent.buffers.items()):
                state[name].copy_(tensor)
        return net

    def _schedule(self, samples: int, parts: int) -> Schedule | None:
        """The client's steps; ``None``: they are not known, or are not those of SGD."""
        training = self.facts.training
        steps = training.steps(-(-samples // parts))
        if training.optimizer != "sgd" or training.lr is None or steps is None:
            return None
        size = min((training.batch_size or samples) * parts, samples)
        return Schedule(training.lr, steps, size, training.momentum, training.weight_decay, training.weight_decay)

    def sender(self, round: int, client: int) -> Sender:
        name = self.client_name(client)
        if self.summed:
            members = len(self.recorded.behind(name))
            return Sender(None, members, members)
        return self.one_client(client)

    def one_client(self, client: int) -> Sender:
        return Sender(client, name=self.client_name(client))

    def observation(self, message: Message, threat: ThreatModel, what: str = "") -> Observation:
        update, samples = self.update(message), len(self.labels(message.client))
        if what:
            return update.observation(message, threat, what)
        if message.first_update and message.num_examples is not None:  # of a simulated client
            samples = message.num_examples
        schedule = None if update.schedule is None else self._schedule(samples, message.parts)
        seen = update.seen(self._change(message, update), threat, schedule, samples)
        buffers = self.buffers(message)
        return replace(
            seen,
            altered=replace(seen.altered, variance={name: it / message.parts for name, it in seen.altered.variance.items()}),
            buffers={self.net.names[name]: tensor.float() for name, tensor in buffers.items()},
            passes=self._passes(samples, message.parts) if buffers else None,
            control_differences=(*seen.control_differences, *self._other_steps(update), *self.doubts),
        )

    def _other_steps(self, update: UpdateRecord) -> list[str]:
        optimizer = self.facts.training.optimizer
        if not update.is_change or optimizer == "sgd":
            return []
        whose = "another optimiser's" if optimizer == "other" else f"{optimizer}'s"
        return [f"attacks read a change as that of SGD, and the client's steps were {whose}"]

    def buffers(self, message: Message) -> dict[str, Tensor]:
        """The net's buffers that a client was sent and sent back, such as running means, by the net's names."""
        return {
            name: message.uploaded[name]
            for name, buffer in self.model.named_buffers()
            if buffer.is_floating_point() and name in message.received and name in message.uploaded
        }

    def _passes(self, samples: int, parts: int) -> Passes | None:
        """The batches of a client's training; ``None``: they are not known."""
        training, each = self.facts.training, max(1, samples // parts)
        steps = training.steps(each)
        return None if steps is None else Passes(steps, min(training.batch_size or each, each))

    def gradients(self, message: Message) -> list[str]:
        return self.update(message).gradients(message)

    def statistics(self) -> tuple[Statistic, ...]:
        normal = [f"{place}." for place, module in self.model.named_modules() if isinstance(module, _BatchNorm)]
        kinds = {
            name: RUNNING for name, it in self.model.named_buffers() if it.is_floating_point() and name.startswith((*normal,))
        }
        first = self.message(*self.messages()[0]).uploaded
        schema = {name: (code_of(tensor), tuple(tensor.shape)) for name, tensor in first.items()}
        return listed([schema], kinds)

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

    def in_own_names(self, text: str) -> str:
        return self.net.in_own_names(text)

    def holders(self) -> list[int]:
        return list(dict.fromkeys(client for _, client in self._attackable))

    def parameters(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]


def _in_order(given: Mapping[str, Tensor]) -> Mapping[str, Tensor] | Sequence[Tensor]:
    """Tensors by name, or, if all names are numbers, in their order."""
    if all(name.isdecimal() for name in given):
        return [given[name] for name in sorted(given, key=int)]
    return given
