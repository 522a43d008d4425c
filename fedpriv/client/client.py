"""The client half of a round: what it received -> a turn on its own data -> sealed messages; its private state stays at home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedpriv.aggregation import Aggregation
from fedpriv.agreement import Agreement
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.client.model import ClientModel
from fedpriv.client.store import ClientStore
from fedpriv.client.suspicion import check_for_marks
from fedpriv.data.augmentation.augment import Augment
from fedpriv.data.federated import Split, Which
from fedpriv.errors import ClientDiverged, FedprivError, UsageError
from fedpriv.files import checksum
from fedpriv.interfaces import Phase, Private
from fedpriv.noise_source import RandomSource, SecretSource
from fedpriv.objectives.cross_entropy import Plain
from fedpriv.privacy.canaries import HeldCanaries
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.plan import check_upload
from fedpriv.samples import tensors as named
from fedpriv.seeding import derive_secretly
from fedpriv.spans import UNTIMED, Spans
from fedpriv.wire import Payload, Sealed, TransformContext, tensor_of, transform_and_seal
from fedpriv.wire.coding import Upload, is_model
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Charge, Report, can_say
from fedpriv.wire.sealing import CODES

AT_ONCE = 512
"""Samples of a test that are made ready at a time."""


class OwnData(Protocol):
    """A client's samples."""

    def train(self) -> Split:
        """Those that it trains on."""

    def size(self, which: Which) -> int:
        """How many they are."""

    def chunks(self, which: Which, size: int) -> Iterator[Split]:
        """Those of a split, so many at a time."""

    def weights(self, which: Which) -> Tensor | None:
        """How much each counts in a test ``(n,)``; ``None``: all the same."""


@dataclass(frozen=True)
class Received:
    """A download as clients read it; those of one process share it.

    Attributes:
        tensors: what was sent, by name.
        initial: ``(p,)`` the model before the first round.
        start: ``(p,)`` the model that a local update begins with, but for what the client keeps.
        message: as it came; ``None``: the method does not communicate.
    """

    round: int
    tensors: Mapping[str, Tensor]
    initial: Tensor
    start: Tensor
    message: Sealed | None = None


def receive(agreement: Agreement, round: int, download: Sealed | None, initial: Tensor, draw: torch.Generator) -> Received:
    """Read what the server sent.

    What a client keeps never overrides what it receives; what it neither keeps nor receives is as it was initially.

    Args:
        download: ``None``: the method does not communicate.
        initial: ``(p,)``, on the device.
        draw: of the rows that the check for marks looks at.

    Raises:
        FedprivError: the message is not what the server of this run may send in this round.
        SuspiciousDownload: it has marks of an attack, and ``wire.check_downloads`` is set.
    """
    if download is not None:
        try:
            check_download(agreement, round, download)
        except Refused as reason:
            raise FedprivError(f"what the server sent for round {round} is refused: {reason}") from None
    tensors = {name: tensor.to(initial.device) for name, tensor in download.tensors().items()} if download else {}
    if agreement.config.wire.check_downloads:
        check_for_marks(agreement, round, tensors, draw)
    return Received(round, tensors, initial, agreement.space.pack(tensors, initial.clone()), download)


def check_download(agreement: Agreement, round: int, download: Sealed) -> None:
    """Check a download (round 0: the broadcast) by what is known without the server's state: of which round it is, that it holds
    the tensors of the net that the server knows, in their shapes, that all its numbers are finite, and no variance below zero.

    Raises:
        Refused: it is none.
    """
    space, dtype = agreement.space, agreement.initial.dtype
    known = set(space.names if round == 0 else agreement.method.shared_names)
    if (download.round, download.client, download.kind, download.transforms) != (round, None, "weights", ()):
        raise Refused(f"it is of kind {download.kind} for round {download.round}")
    for name, (code, shape) in download.schema.items():
        about = tensor_of(name)
        if is_model(name) and name not in known:
            raise Refused(f"{name} is nothing that the server sends")
        if is_model(name) and CODES[code] != dtype:
            raise Refused(f"{name} is of {CODES[code]}, not {dtype}")
        if about in space and shape != tuple(space[about].shape):
            raise Refused(f"{name} has shape {list(shape)}, not {list(space[about].shape)}")
    method = agreement.method
    sends_all = round == 0 or not (
        method.partial_downloads or type(method.aggregation).download_names is not Aggregation.download_names
    )
    if sends_all and (missing := sorted(known - download.names)):
        raise Refused(f"{missing[0]} is missing")
    if spoiled := download.not_finite():
        raise Refused(f"{spoiled} is not finite")
    Upload(download).check_variances()


class Client:
    """One client. It knows its own data and what it was sent, nothing of the others.

    Args:
        store: where it keeps its private state; ``None``: nowhere.
        augment: what is drawn anew of each sample in each epoch.
        secret: known to the client alone, and mixed into the draws of noise; ``None``: these come from the run's seed, as in a
            simulation.
        terms: checksum of what it has agreed to; the noise differs with it.
        begins: called before a local update or a test, with its round and a checksum of all that it starts from, where there is a
            secret; it raises where that may not be.
    """

    def __init__(
        self,
        number: int,
        agreement: Agreement,
        data: OwnData,
        store: ClientStore | None = None,
        augment: Augment | None = None,
        secret: bytes | None = None,
        terms: str = "",
        begins: Callable[[Literal["update", "test"], int, str], None] = lambda what, round, started: None,
    ) -> None:
        self.number, self.agreement, self.data, self.store, self.augment = number, agreement, data, store, augment
        self.secret, self.terms, self.begins = secret, terms, begins

    def private(self, last: int | None, initial: Tensor) -> Private:
        """What it kept from its local update in round ``last``; ``None``: what it has before its first local update.

        Args:
            initial: ``(p,)`` the model before the first round.
        """
        if last is None or self.store is None:
            return self.agreement.method.initial_private(self.number, initial)
        device = initial.device
        return {name: tensor.to(device) for name, tensor in self.store.load(self.number, last).items()}

    def train(self, model: ClientModel, received: Received, last: int | None, profile: Spans = UNTIMED) -> Answer:
        """Its local update in a round, on a model that it has for the time being.

        Args:
            last: the round of its last local update that counted, of which it kept a state.

        Raises:
            FedprivError: the state is gone, or the local update would spend more than ``privacy.target_epsilon``.
        """
        method, round = self.agreement.method, received.round
        with profile("checkpoint", client=self.number):
            kept = self.private(last, received.initial)
        model.row.copy_(received.start)
        model.space.pack({name: tensor for name, tensor in kept.items() if name not in received.tensors}, model.row)
        with profile("data", client=self.number):
            data = self.data.train()
        update = self._update(model, data, received, kept, last is None)
        charges: list[Charge] = []
        if self.secret is not None:
            started = self._started(received, model.row, kept, last is None)
            self.begins("update", round, started)
            update.hidden = SecretSource(derive_secretly(self.secret, self.agreement.config.seed, started))
        if self.agreement.config.privacy.level == "sample":
            update.spend = lambda rate, steps: self._spend(round, charges, (rate, steps))
            if (canaries := self.agreement.canaries) is not None:
                held = canaries.held_by(self.number, self.agreement.trainable)
                update.canaries = HeldCanaries(canaries, held, self.agreement.config.privacy.clip)
        try:
            method.local_update(update)
        except ClientDiverged:
            return Answer(self.number, None, Report(round, self.number, update.num_examples, diverged=True, spent=charges).seal())
        if update.untrained:  # it would weigh as much as a client that trained, and hold the others back
            return Answer(
                self.number, None, Report(round, self.number, update.num_examples, untrained=True, spent=charges).seal()
            )
        trained = None if update.spend is None else model.space.unpack(model.row.clone())
        with profile("serialisation", client=self.number):
            update.over = True
            payload = method.upload(update)
            update.over = False
            if payload is not None and trained is not None:
                _check_as_trained(payload, trained)
            update.upload = self._sealed(payload, received, update.hidden, update.reported, profile)
        keeps = method.keep(update)
        if keeps and self.store is not None:
            with profile("checkpoint", client=self.number):
                self.store.keep(self.number, round, keeps)
        with profile("serialisation", client=self.number):
            loss = update.mean_loss if can_say(update.mean_loss) else None
            numbers = {name: value for name, value in update.reported.items() if can_say(value)}
            if self.secret is not None and update.spend is not None:  # a server that is not trusted learns nothing without noise
                loss, numbers = None, {}
            report = Report(
                round, self.number, update.num_examples, loss, keeps=bool(keeps), spent=charges, numbers=numbers
            ).seal()
        return Answer(self.number, update.upload, report)

    def test(self, model: ClientModel, received: Received, last: int | None) -> Answer:
        """Score the server's model, with its own parts, on its own test samples."""
        kept, phases = self.private(last, received.initial), self.agreement.method.adaptation(received.round)
        if self.secret is not None:
            self.begins("test", received.round, self._started(received, received.start, kept, last is None))
        accuracy, diverged = self.score(model, received, kept, phases)
        examples = self.data.size(self.agreement.config.eval.split)
        return Answer(self.number, None, Report(received.round, self.number, examples, None, accuracy, diverged=diverged).seal())

    def score(self, model: ClientModel, received: Received, kept: Private, phases: Sequence[Phase]) -> tuple[float | None, bool]:
        """Accuracy in [0, 1] after these phases of training (``None``: no test samples), and whether they diverged.

        Where they diverged, the client is tested as it was before.
        """
        split = self.agreement.config.eval.split
        if not self.data.size(split):
            return None, False
        state = self.agreement.method.client_state(received.start, kept)
        model.space.pack(state, model.row)
        diverged = not self._adapt(model, received, kept, phases)
        if diverged:
            model.space.pack(state, model.row)
        hits = [
            model.from_features(model.features(inputs)).logits.argmax(1) == labels
            for inputs, labels in self.data.chunks(split, AT_ONCE)
        ]
        return share(torch.cat(hits), self.data.weights(split)), diverged

    def _started(self, received: Received, row: Tensor, kept: Private, first: bool) -> str:
        """Checksum of all that a local update or a test starts from, by which the noise of a local update differs.

        A server chooses the terms, the message, which of its states a client goes on from, and the initial model; and a client's
        samples may change between two starts of it. So two local updates that differ never have the same noise, which the
        difference of their answers would be without; a repeated one gives the same answer.
        """
        parts = {"row": row.cpu(), **{f"kept/{name}": tensor.cpu() for name, tensor in kept.items()}}
        message = received.message.digest if received.message else ""
        return checksum(parts, repr((self.terms, self._samples, message, first)))

    @cached_property
    def _samples(self) -> str:
        """Checksum of its training samples, which stay the same as long as they are loaded."""
        inputs, labels = self.data.train()
        parts = {f"inputs/{name}": part for name, part in named(inputs).items()}
        return checksum({name: part.cpu() for name, part in {**parts, "labels": labels}.items()})

    def _adapt(self, model: ClientModel, received: Received, kept: Private, phases: Sequence[Phase]) -> bool:
        """Train before a test; ``False``: it diverged."""
        if not phases or not self.data.size("train"):
            return True
        update = self._update(model, self.data.train(), replace(received, tensors={}), kept, False, "adapt")
        method = self.agreement.method
        try:
            for phase in phases:
                update.train(phase, method.local_loss, Plain(method.objective.smallest_batch))
        except ClientDiverged:
            return False
        return True

    def _update(
        self, model: ClientModel, data: Split, received: Received, kept: Private, first: bool, purpose: str = "train"
    ) -> ModelLocalUpdate:
        config = self.agreement.config
        unused = self.agreement.unused(self.number) if purpose == "train" else frozenset[str]()
        sent, augment = received.tensors, self.augment
        return ModelLocalUpdate(model, data, config, received.round, self.number, sent, kept, first, purpose, augment, unused)

    def _spend(self, round: int, charges: list[Charge], charge: Charge) -> None:
        """Book a stretch of DP-SGD before it is run, and refuse it where the client's own samples would spend too much."""
        charges.append(charge)
        if self.store is None:
            return
        privacy, account = self.agreement.config.privacy, str(self.number)
        known = self.store.spent(self.number)
        before = {**known, round: charges[:-1]}
        booked = [[privacy.noise or 0.0, rate, steps] for number in sorted(before) for rate, steps in before[number]]
        Ledger(privacy, {account: booked}, [(self.number,)]).spend(account, *charge)
        # A local update that comes again was booked as a whole, and may be broken off before it has spent as much.
        self.store.book(self.number, round, max(charges, known.get(round, []), key=len))

    def _sealed(
        self, payload: Payload | None, received: Received, hidden: RandomSource, reported: dict[str, float], profile: Spans
    ) -> Sealed | None:
        """The upload as it crosses the wire: through the transforms, each with draws of its own."""
        if payload is None:
            return None
        agreement, level = self.agreement, self.agreement.config.privacy.level
        if level == "client":
            payload = replace(payload, num_examples=None)  # every client weighs the same

        def context(index: int) -> TransformContext:
            draws = hidden.noise(received.round, self.number, "transform", index)
            return TransformContext(received.tensors, agreement.layers, draws, agreement.linear, reported.__setitem__)

        transforms = [profile.timed("defences", transform) for transform in agreement.transforms]
        sealed = transform_and_seal(payload, transforms, context)
        if level != "none":
            check_upload(sealed, agreement.sent_names)
        return sealed


def _check_as_trained(payload: Payload, trained: Mapping[str, Tensor]) -> None:
    """Refuse an upload that holds other values of the model than the training, whose steps alone epsilon covers, has left."""
    for name, tensor in payload.tensors.items():
        if name in trained and not torch.equal(tensor.to(trained[name].device), trained[name]):
            raise UsageError(
                f"privacy.level sample: the method would send other values of {name} than its training has left, which no noise "
                "covers; what changes an upload without the data is a transform (fedpriv defenses)"
            )


def share(hits: Tensor, weights: Tensor | None) -> float:
    """Share of the hits ``(n,)``, each sample as heavy as its weight ``(n,)``."""
    if weights is None:
        return float(hits.double().mean())
    return float((hits.double() * weights).sum() / weights.sum())
