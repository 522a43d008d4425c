"""A client's part of a round: it receives a model, trains on its own data, and answers with sealed messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.client.model import ClientModel
from fedpriv.client.receiving import Received
from fedpriv.client.store import ClientStore
from fedpriv.data.augmentation.augment import Augment
from fedpriv.data.federated import Split, Which
from fedpriv.errors import ClientDiverged, UsageError
from fedpriv.files import checksum
from fedpriv.interfaces import CLASS_WEIGHTS, Phase, Private
from fedpriv.noise_source import RandomSource, SecretSource
from fedpriv.objectives.cross_entropy import Plain
from fedpriv.privacy.canaries import HeldCanaries
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.plan import check_upload
from fedpriv.samples import tensors as named
from fedpriv.scores.predictions import Predictions
from fedpriv.seeding import derive_secretly
from fedpriv.spans import UNTIMED, Spans
from fedpriv.wire import Payload, Sealed, TransformContext, transform_and_seal
from fedpriv.wire.report import Answer, Charge, Report, can_say

TEST_CHUNK = 512
"""Samples of a test that are loaded at a time."""


class OwnData(Protocol):
    """A client's samples."""

    def train(self) -> Split:
        """The training samples."""

    def size(self, which: Which) -> int:
        """Number of samples of a split."""

    def chunks(self, which: Which, size: int) -> Iterator[Split]:
        """The samples of a split, ``size`` at a time."""

    def weights(self, which: Which) -> Tensor | None:
        """Weights ``(n,)`` of the samples in a test; ``None``: all are equal."""


class Client:
    """One client of a run.

    Args:
        store: where the client keeps its private state; ``None``: it keeps none.
        augment: augmentation of the training samples, drawn anew in each epoch.
        secret: known only to the client; its noise is drawn from it. ``None``: noise is drawn from the run's seed, as in a
            simulation.
        terms: checksum of what the client has agreed to; the noise depends on it too.
        begins: with a secret, called before a local update or a test with its round and a checksum of everything that it starts
            from; raises to refuse it.
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
        """The client's private state.

        Args:
            last: the round of the client's last local update that was merged; ``None``: before the first one.
            initial: ``(p,)`` the model before the first round.
        """
        if last is None or self.store is None:
            return self.agreement.method.initial_private(self.number, initial)
        device = initial.device
        return {name: tensor.to(device) for name, tensor in self.store.load(self.number, last).items()}

    def train(self, model: ClientModel, received: Received, last: int | None, profile: Spans = UNTIMED) -> Answer:
        """The client's local update in a round.

        Args:
            model: trained in place; the client has it for this call only.
            last: the round of the client's last local update that was merged, whose private state this one continues from;
                ``None``: this is the first.

        Raises:
            FedprivError: the private state is lost, or the local update would spend more than ``privacy.target_epsilon``.
        """
        method, round = self.agreement.method, received.round
        with profile("checkpoint", client=self.number):
            kept = self.private(last, received.initial)
        model.row.copy_(received.start)
        model.space.pack({name: tensor for name, tensor in kept.items() if name not in received.tensors}, model.row)
        with profile("data", client=self.number):
            data = self.data.train()
        update = self._local_update(model, data, received, kept, last is None)
        charges: list[Charge] = []
        self._protect(update, received, kept, last is None, charges)

        try:
            method.local_update(update)
        except ClientDiverged:
            return self._without_upload(Report(round, self.number, update.num_examples, diverged=True, spent=charges))
        if update.untrained:  # its upload would weigh as much as that of a client that trained, and slow the others down
            return self._without_upload(Report(round, self.number, update.num_examples, untrained=True, spent=charges))

        trained = None if update.spend is None else model.space.unpack(model.row.clone())
        with profile("serialisation", client=self.number):
            update.over = True
            payload = method.upload(update)
            update.over = False
            if payload is not None and trained is not None:
                _check_as_trained(payload, trained)
            if payload is not None:
                payload = self.alter(payload, received)
            update.upload = self._sealed(payload, received, update.hidden, update.reported, profile)
        keeps = {**method.keep(update), **update.optimisers}
        if keeps and self.store is not None:
            with profile("checkpoint", client=self.number):
                self.store.keep(self.number, round, keeps)
        with profile("serialisation", client=self.number):
            report = self._report(update, bool(keeps), charges).seal()
        return Answer(self.number, update.upload, report)

    def alter(self, payload: Payload, received: Received) -> Payload:
        """The upload before all transforms: here the trained update itself."""
        return payload

    def _protect(self, update: ModelLocalUpdate, received: Received, kept: Private, first: bool, charges: list[Charge]) -> None:
        """Give the update its secret noise source, and under sample-level DP its booking and canaries.

        Args:
            charges: to which each phase of DP-SGD is added before it is run.
        """
        if self.secret is not None:
            started = self._checksum_of_start(received, update.row, kept, first)
            self.begins("update", received.round, started)
            update.hidden = SecretSource(derive_secretly(self.secret, self.agreement.config.seed, started))
        if self.agreement.config.privacy.level == "sample":
            update.spend = lambda rate, steps: self._spend(received.round, charges, (rate, steps))
            if (canaries := self.agreement.canaries) is not None:
                held = canaries.held_by(self.number, self.agreement.trainable)
                update.canaries = HeldCanaries(canaries, held, self.agreement.config.privacy.clip)

    def _without_upload(self, report: Report) -> Answer:
        return Answer(self.number, None, report.seal())

    def _report(self, update: ModelLocalUpdate, keeps: bool, charges: Sequence[Charge]) -> Report:
        """The client's report of a local update that trained."""
        loss = update.mean_loss if can_say(update.mean_loss) else None
        numbers = {name: value for name, value in update.reported.items() if can_say(value)}
        if self.secret is not None and update.spend is not None:  # no noise covers these numbers, and the server is not trusted
            loss, numbers = None, {}
        return Report(update.round, self.number, update.num_examples, loss, keeps=keeps, spent=charges, numbers=numbers)

    def test(self, model: ClientModel, received: Received, last: int | None) -> Answer:
        """Test the server's model, completed by the client's private parts, on the client's own test samples."""
        kept, phases = self.private(last, received.initial), self.agreement.method.adaptation(received.round)
        if self.secret is not None:
            self.begins("test", received.round, self._checksum_of_start(received, received.start, kept, last is None))
        predictions, diverged = self.predict(model, received, kept, phases)
        scores = {} if predictions is None else self.agreement.declared.task.scored([predictions])[0]
        examples = self.data.size(self.agreement.config.eval.split)
        return self._without_upload(Report(received.round, self.number, examples, scores=scores, diverged=diverged))

    def predict(
        self, model: ClientModel, received: Received, kept: Private, phases: Sequence[Phase], keep_logits: bool = False
    ) -> tuple[Predictions | None, bool]:
        """Predictions on the client's test samples after an adaptation (``None``: it has none), and whether that diverged.

        If it diverged, the client is tested without it.

        Args:
            phases: the phases of the adaptation.
        """
        split = self.agreement.config.eval.split
        if not self.data.size(split):
            return None, False
        state = self.agreement.method.client_state(received.start, kept)
        model.space.pack(state, model.row)
        diverged = not self._adapt(model, received, kept, phases)
        if diverged:
            model.space.pack(state, model.row)
        tested = [
            (model.from_features(model.features(inputs)).logits, labels) for inputs, labels in self.data.chunks(split, TEST_CHUNK)
        ]
        logits, labels = (torch.cat(parts) for parts in zip(*tested, strict=True))
        return self.agreement.declared.task.predictions(logits, labels, self.data.weights(split), keep_logits), diverged

    def _checksum_of_start(self, received: Received, row: Tensor, kept: Private, first: bool) -> str:
        """Checksum of everything that a local update or a test starts from; the noise is derived from it.

        So two local updates that differ in anything have different noise: with the same noise, the difference of their uploads
        would be without noise. A local update that is repeated gives the same answer. The checksum covers what a server chooses
        (the terms, the message, the private state to continue from, the initial model), and the client's samples, which may
        change while the client is not running.
        """
        parts = {"row": row.cpu(), **{f"kept/{name}": tensor.cpu() for name, tensor in kept.items()}}
        message = received.message.digest if received.message else ""
        return checksum(parts, repr((self.terms, self._samples, message, first)))

    @cached_property
    def _samples(self) -> str:
        """Checksum of the client's training samples, computed once."""
        inputs, labels = self.data.train()
        parts = {f"inputs/{name}": part for name, part in named(inputs).items()}
        return checksum({name: part.cpu() for name, part in {**parts, "labels": labels}.items()})

    def _adapt(self, model: ClientModel, received: Received, kept: Private, phases: Sequence[Phase]) -> bool:
        """Train before a test; ``False``: the training diverged."""
        if not phases or not self.data.size("train"):
            return True
        update = self._local_update(model, self.data.train(), replace(received, tensors={}), kept, False, "adapt")
        method = self.agreement.method
        try:
            for phase in phases:
                update.train(phase, method.local_loss, Plain(method.objective.smallest_batch))
        except ClientDiverged:
            return False
        return True

    def _local_update(
        self, model: ClientModel, data: Split, received: Received, kept: Private, first: bool, purpose: str = "train"
    ) -> ModelLocalUpdate:
        config = self.agreement.config
        unused = self.agreement.unused(self.number) if purpose == "train" else frozenset[str]()
        sent, augment = received.tensors, self.augment
        update = ModelLocalUpdate(model, data, config, received.round, self.number, sent, kept, first, purpose, augment, unused)
        if (weights := self.agreement.method.context.class_weights) is not None:
            update.memo[CLASS_WEIGHTS] = weights.to(model.device, model.row.dtype)
        return update

    def _spend(self, round: int, charges: list[Charge], charge: Charge) -> None:
        """Book a phase of DP-SGD before it is run; raises if the client's samples would spend more than the target epsilon."""
        charges.append(charge)
        if self.store is None:
            return
        privacy, account = self.agreement.config.privacy, str(self.number)
        booked = self.store.spent(self.number)
        before = {**booked, round: charges[:-1]}
        spent = [[privacy.noise or 0.0, rate, steps] for number in sorted(before) for rate, steps in before[number]]
        Ledger(privacy, {account: spent}, [(self.number,)], self.agreement.spent_before).spend(account, *charge)
        # A local update that is repeated is booked already, perhaps with more phases than it has run so far.
        self.store.book(self.number, round, max(charges, booked.get(round, []), key=len))

    def _sealed(
        self, payload: Payload | None, received: Received, hidden: RandomSource, reported: dict[str, float], profile: Spans
    ) -> Sealed | None:
        """The upload after all transforms, each with its own noise, as a message."""
        if payload is None:
            return None
        agreement, level = self.agreement, self.agreement.config.privacy.level
        if level == "client":
            payload = replace(payload, num_examples=None)  # every client weighs the same

        def context(index: int) -> TransformContext:
            noise = hidden.noise(received.round, self.number, "transform", index)
            return TransformContext(received.tensors, agreement.layers, noise, agreement.linear, reported.__setitem__)

        transforms = [profile.timed("defences", transform) for transform in agreement.transforms]
        sealed = transform_and_seal(payload, transforms, context)
        if level != "none":
            check_upload(sealed, agreement.sent_names)
        return sealed


def _check_as_trained(payload: Payload, trained: Mapping[str, Tensor]) -> None:
    """Refuse an upload whose model is not the trained one, as epsilon only covers the steps of training."""
    for name, tensor in payload.tensors.items():
        if name in trained and not torch.equal(tensor.to(trained[name].device), trained[name]):
            raise UsageError(
                f"privacy.level sample: the method would send other values of {name} than its training has left, which no noise "
                "covers; to change an upload independently of the data, use a transform (fedpriv defenses)"
            )
