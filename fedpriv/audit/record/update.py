"""The record of one update of any training loop: a net, what was sent, and the steps and samples that are declared for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from fedpriv.attacks.api import tensors
from fedpriv.attacks.api.inversion import observed
from fedpriv.attacks.api.label_rules import balanced
from fedpriv.attacks.api.user_net import UserNet
from fedpriv.attacks.core.columns import RowEncoding
from fedpriv.attacks.core.observation import Observation, Schedule, TextFacts, ThreatModel, copied
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.labels import Samples
from fedpriv.audit.record.alteration import declared
from fedpriv.audit.record.base import Message, PlainChange, PublicImages, Record, Truth
from fedpriv.audit.record.control_differences import in_training, made_up, trains_otherwise
from fedpriv.audit.record.statistics import MEANINGS, UNKNOWN, kinds, listed, named
from fedpriv.audit.record.traffic import IN_TRANSIT, has_batch_norm, net_conditions
from fedpriv.audit.results.audit import AuditedRun, Part
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.results.wire import Statistic, TensorInfo, Wire
from fedpriv.wire import Sealed, Transform
from fedpriv.wire.sealing import CODES

IN_A_RUN = "it is a change since the client's last local update, and only a run says what came before"
NO_GRADIENT = Reason("does not apply", "they are no gradient of the loss, and no attack on one message reads them")


@dataclass(kw_only=True, eq=False)
class UpdateRecord(Record):
    """One update, as the message of client 0 in round 1.

    Attributes:
        model: from images ``(B, C, H, W)`` or rows ``(B, F)`` to logits, with the client's first weights, in the mode in which it
            trained.
        net: the same, cut before its head.
        sent: the gradient of the mean loss or, with a schedule, the change of the weights.
        besides: what a payload holds besides the model, by the names on the wire.
        payload: the payload that held the update; ``None``: it came as plain tensors.
        data: the samples that the client trained on.
        mean, std: of the normalisation, by channel.
        public: images of the same kind, and their labels.
        transforms: what the update is known to have gone through.
        encoding: of the columns, where the samples are rows of a table; ``None``: they are images.
        is_change: whether it is a change although no schedule is known.
        text: of the net, where the samples are token ids ``(n, L)``; ``None``: they are no texts.
    """

    name: str
    seed: int
    model: nn.Module
    net: UserNet
    sent: tensors.Message
    besides: Mapping[str, Tensor]
    payload: Sealed | None
    data: Truth
    schedule: Schedule | None
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    public: PublicImages = (None, None)
    transforms: Sequence[Transform] = ()
    encoding: RowEncoding | None = None
    is_change: bool = False
    text: TextFacts | None = None

    def __post_init__(self) -> None:
        self.modalities, self.declared = ("image",) if self.encoding is None else (), True
        self.classes, self.input_shape = self.net.classes, tuple(self.data.images.shape[1:])

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        """The one message."""
        return [(1, 0)]

    def message(self, round: int, client: int) -> Message:
        """The update; a gradient stands in the place of new weights."""
        received = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        return Message(round, client, received, {**self.sent.parameters, **self.besides}, len(self.data.labels))

    def title(self, round: int, client: int, samples: str, steps: int | None = None) -> str:
        return f"{self.name}: {samples}"

    def picture(self, kind: str, round: int, sender: Sender) -> str:
        return "update.png"

    def observation(self, message: Message, threat: ThreatModel, what: str = "") -> Observation:
        if what:
            seen = self._observed(named(message.uploaded, what), threat, None)
            return replace(seen, net=seen.net.eval())
        return self.seen(self.sent.parameters, threat, self.schedule, len(self.data.labels))

    def seen(self, sent: Mapping[str, Tensor], threat: ThreatModel, schedule: Schedule | None, samples: int) -> Observation:
        """What an attacker sees of an update from the same weights: this one, or a simulated client's in its place."""
        seen = self._observed(sent, threat, schedule, samples)
        altered = declared(seen.shared, self.transforms)
        kind: Literal["gradient", "change"] = "change" if self.is_change else seen.kind
        return replace(seen, kind=kind, control_differences=self._differences, altered=altered, statistics=dict(self.besides))

    def _observed(
        self, sent: Mapping[str, Tensor], threat: ThreatModel, schedule: Schedule | None, samples: int | None = None
    ) -> Observation:
        n = len(self.data.labels) if samples is None else samples
        seen = observed(
            self.model, self.net, sent, threat, input_shape=self.input_shape, n=n, schedule=schedule, mean=self.mean, std=self.std
        )
        return replace(seen, encoding=self.encoding, text=self.text)

    @cached_property
    def _differences(self) -> tuple[str, ...]:
        """In what the message differs from those of every attack's controls, a clause each."""
        net = copied(self.model).cpu().float()
        probe = made_up(self.input_shape) if self.text is None else self.data.images[:2]
        clauses = in_training(net, trains_otherwise(net, probe))
        known = {str(transform) for transform in self.transforms}
        unknown = [name for name in self._applied if name not in known and not name.startswith("mask(")]  # a mask is seen
        if unknown:
            clauses.append(f"the update went through {', '.join(unknown)}, whose effect attacks do not know (transforms=...)")
        return tuple(clauses)

    @property
    def _applied(self) -> tuple[str, ...]:
        return () if self.payload is None else tuple(self.payload.transforms)

    def gradients(self, message: Message) -> list[str]:
        """Only statistics that are ``whole`` gradients; a ``change`` needs earlier messages."""
        return self._kinds("whole")

    def _kinds(self, gradient: str) -> list[str]:
        """The kinds of statistics that are such a gradient."""
        return [what for what in kinds(self.besides) if MEANINGS.get(what, UNKNOWN).gradient == gradient]

    def started(self, message: Message, what: str = "") -> Mapping[str, Tensor]:
        return self._observed(self.sent.parameters, ThreatModel(top="current"), self.schedule).weights

    def in_own_names(self, text: str) -> str:
        return self.net.in_own_names(text)

    def plain_change(self, message: Message) -> PlainChange:
        """The update itself."""
        return PlainChange(self.sent.parameters)

    def truth(self, client: int) -> Truth:
        return self.data

    def rows(self, client: int) -> Tensor:
        return self.data.images

    def public_rows(self) -> Tensor:
        rows, _ = self.public
        return self.data.images[:0] if rows is None else rows.cpu().float()

    def server_labels(self) -> Tensor:
        _, labels = self.public
        return self.data.labels[:0] if labels is None else labels.cpu()

    def labels(self, client: int) -> Tensor:
        return self.data.labels

    def set_guess(self, true: Tensor) -> float:
        """The chance that a random set of as many classes as the client's is the right one; nothing is known of other clients."""
        return 1 / math.comb(self.classes, int((true > 0).sum()))

    def public_images(self) -> PublicImages:
        return self.public

    def public_samples(self) -> Samples | None:
        images, labels = self.public
        if images is None or labels is None:
            return None
        chosen = balanced(labels.cpu(), self.classes)
        mean, std = (torch.tensor(values).view(-1, *[1] * (images.ndim - 2)) for values in (self.mean, self.std))
        return Samples((images.cpu().float()[chosen] - mean) / std, labels.cpu()[chosen])

    def statistics(self) -> tuple[Statistic, ...]:
        return () if self.payload is None else listed([self.payload.schema], {})

    def not_run(self) -> dict[Part, Reason]:
        parts = super().not_run()
        if "centers" not in kinds(self.besides):
            parts["class centres"] = Reason("not available", "the update came without class centres")
        if self.encoding is not None and self.cannot_simulate is not None:
            parts["attributes"] = self.cannot_simulate
        if self.sent.buffers:
            parts["buffers"] = NO_GRADIENT
        if changes := self._kinds("change"):
            parts["statistics"] = Reason("not available", f"{', '.join(changes)}: {IN_A_RUN}")
        return parts

    def facts(self) -> AuditedRun:
        """What the update says without attacks."""
        wire = tuple(self.tensor_infos())
        return AuditedRun(
            source="update",
            name=self.name,
            run_id=self.name,
            method="one update",
            title="One update of a training loop",
            dataset=f"images of {'x'.join(map(str, self.input_shape))}"
            if self.encoding is None
            else f"rows of {len(self.encoding.columns)} columns",
            model=type(self.model).__name__,
            modalities=self.modalities,
            seed=self.seed,
            defence=self._applied,
            cost=Cost(bytes_up=sum(tensor.bytes for tensor in wire if tensor.up)),
            wire=Wire(wire),
            server_knows=(
                "has the message and the weights that the client began with",
                "knows the architecture, the number of samples and the schedule that was given",
            ),
            outsider_knows=IN_TRANSIT,
            conditions=net_conditions(self.net.split),
            batch_norm=has_batch_norm(self.net.split),
        )

    def tensor_infos(self) -> Iterator[TensorInfo]:
        """The tensors of the net, and whether they were sent."""
        for name, parameter in self.model.named_parameters():
            role = "head" if name.startswith(f"{self.net.head}.") else "encoder"
            yield _listed(name, role, parameter.detach().float(), name in self.sent.parameters)
        for name, tensor in self.sent.buffers.items():
            yield _listed(name, "buffer", tensor, True)


def code_of(tensor: Tensor) -> str:
    """The name that safetensors has for a tensor's type."""
    return next((code for code, dtype in CODES.items() if dtype == tensor.dtype), str(tensor.dtype))


def _listed(name: str, role: str, tensor: Tensor, up: bool) -> TensorInfo:
    return TensorInfo(
        name=name,
        role=role,
        dtype=code_of(tensor),
        shape=tuple(tensor.shape),
        bytes=tensor.nbytes,
        up=up,
        down=True,
        broadcast=False,
    )
