"""The record of a run: the sealed payloads that its folder keeps.

The images, texts and labels behind them are not stored: they are rebuilt from the run's config and checked against its partition
hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.api.label_rules import balanced
from fedpriv.attacks.core import columns as attackers
from fedpriv.attacks.core.columns import RowEncoding
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.inference.labels import Samples
from fedpriv.attacks.scoring.guessing import most_common_share
from fedpriv.audit.before_training import told_totals
from fedpriv.audit.record.alteration import alteration
from fedpriv.audit.record.attacker_view import AttackerView
from fedpriv.audit.record.base import Alone, DataOf, Message, PlainChange, PublicImages, Record, RegressionInputs, Truth
from fedpriv.audit.record.earlier_updates import plain_change
from fedpriv.audit.record.shadow_updates import ShadowUpdates, own_update, regression_inputs, shared_out, single_samples
from fedpriv.audit.record.statistics import MEANINGS, UNKNOWN, as_gradient, kinds, kinds_of_model, listed, named
from fedpriv.audit.record.views import recorded, views_of
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.results.wire import Statistic
from fedpriv.client.receiving import check_download
from fedpriv.data.dataset import Texts
from fedpriv.data.encoding import Column, NumberColumn
from fedpriv.data.federated import Split, Whole
from fedpriv.data.tokens import tokenise
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.methods import find_method
from fedpriv.models.text.pretrained import Encoder
from fedpriv.plugins import load_plugins
from fedpriv.samples import Modality, each
from fedpriv.server.sampling import participants
from fedpriv.simulation.reopening import damaged_partition, reopened
from fedpriv.simulation.setup import Federation
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.records import merged_clients
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Sealed
from fedpriv.wire.coding import decoded
from fedpriv.wire.message import Refused

REFERENCES = 2000
"""Largest number of public images, or rows, in the baselines; with more, the nearest one is hardly nearer."""


class RunRecord(Record):
    """The kept messages of a run, whose clients can be simulated.

    Attributes:
        federation: data, net and method, rebuilt from the config; :class:`UsageError` where they are not the run's.
        corrections: of messages by (round, client), as far as they were computed (:mod:`fedpriv.audit.record.earlier_updates`).

    Raises:
        UsageError: there is no run, the data have changed since its training, or it kept no payload.
        Damaged: a file of the run is not what was written.
    """

    cannot_simulate = None

    def __init__(self, run_dir: Path) -> None:
        self.folder = RunFolder.open(run_dir)
        self.store = self._stored()
        config = self.folder.config()
        if not self.store.rounds():
            load_plugins(config.plugins, of="the config")
            if (kind := find_method(config.method.name)).shared:
                why = "kept no payloads, so there is nothing to attack: train it again with `--keep-payloads default`"
            else:
                what = "nothing is sent" if kind.pools else "no weights are sent, only losses and numbers of samples"
                why = f"has nothing to attack: with method {kind.name} {what}"
            raise UsageError(f"{run_dir} {why}")
        if config.data.corrupt_clients:
            why = "has bad clients (data.corrupt_clients), whose messages are not those of honest ones: audit a run without"
            raise UsageError(f"{run_dir} {why}")
        self.config = config.model_copy(update={"executor": config.executor.here()})
        self.name, self.seed = self.folder.path.name, config.seed
        self.corrections: dict[tuple[int, int], dict[str, Tensor]] = {}

    def _stored(self) -> PayloadStore:
        return PayloadStore.of(self.folder)

    def one_client(self, client: int) -> Sender:
        names = self.folder.facts.get("client_names", ())
        return Sender(client, name=names[client] if client < len(names) else "")

    def of_sums(self) -> list[str]:
        """What the server learns by sums behind masks, in sentences; none without sums."""
        return []

    @cached_property
    def attacker(self) -> AttackerView:
        """The messages as attackers see them."""
        return AttackerView(self)

    def observation(self, message: Message, threat: ThreatModel, what: str = "") -> Observation:
        return as_gradient(self, message, what, threat) if what else self.attacker.observation(message, threat)

    def gradients(self, message: Message) -> list[str]:
        return [what for what in kinds(message.uploaded) if MEANINGS.get(what, UNKNOWN).gradient]

    def steps_behind(self, message: Message, what: str) -> Schedule | None:
        return self.observation(message, ThreatModel()).schedule if MEANINGS[what].gradient == "change" else None

    def started(self, message: Message, what: str = "") -> dict[str, Tensor] | None:
        return self.attacker.started(message, named(message.uploaded, what) if what else None)

    def plain_change(self, message: Message) -> PlainChange:
        return plain_change(self, message)

    def trained_apart(self, message: Message) -> bool:
        """Whether private layers were trained in an earlier local update, or in a phase that trains none of the sent layers."""
        sent = {name.partition(".")[0] for name in message.of_model}
        entries = self.federation.resident.space.entries
        private = {entry.role for entry in entries if entry.name not in message.received} - sent
        phases = [phase.trains for phase in self.federation.method.phases(message.round) if phase.trains & private]
        return bool(phases) and (not message.first_update or any(not trains & sent for trains in phases))

    @cached_property
    def federation(self) -> Federation:
        """Data, net and method, rebuilt from the config; :class:`UsageError` where they are not the run's."""
        federation = reopened(self.folder, self.config)
        if (damage := damaged_partition(self.folder)) is not None:
            raise Damaged(damage)
        return federation

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        """The (round, client) pairs that were kept; with arguments, only the matching ones.

        Raises:
            UsageError: none matches; the message lists the kept ones.
        """
        rounds = self.store.rounds()
        if round is not None and round not in rounds:
            kept = ", ".join(map(str, rounds))
            raise UsageError(f"no payload of round {round} was kept, only of rounds {kept}; see `fedpriv train --keep-payloads`")
        matching = [(r, c) for r in rounds for c in self.store.clients(r) if round in (None, r) and client in (None, c)]
        if not matching:
            some = "; ".join(f"round {r}: {', '.join(map(str, self.store.clients(r)))}" for r in rounds if round in (None, r))
            raise UsageError(f"no payload of client {client} was kept; there are those of {some}")
        return matching

    def verify(self) -> None:
        """Read everything that an audit reads of the folder and of the data.

        Raises:
            UsageError: the data are not those the run was trained on.
            Damaged: a message is not what was written, or does not fit the run's net.
        """
        self.store.verify()
        for round, client in self.messages():
            self.message(round, client)

    def message(self, round: int, client: int) -> Message:
        """One message.

        Raises:
            UsageError: it was not kept.
            Damaged: its file is damaged, or is not what the server of this run would have accepted.
        """
        download, sealed = self.store.download(round), self.store.upload(round, client)
        agreement, received = self.federation.agreement, {} if download is None else download.tensors()
        try:
            if download is not None:
                check_download(agreement, round, download)
            agreement.expected(round, client, received).check(sealed)
        except Refused as reason:
            whose = f"the message of client {client} in round {round}"
            raise Damaged(f"{self.folder.path}: {whose} does not fit the run: {reason}") from None
        return self.read(round, client, sealed, received, sealed.num_examples)

    def read(self, round: int, client: int, sealed: Sealed, received: Mapping[str, Tensor], num_examples: int | None) -> Message:
        """An upload as the server decodes it, with what it knows of the upload's transforms."""
        altered = alteration(sealed, received, self.federation.agreement.transforms)
        return Message(round, client, received, decoded(sealed, received).tensors(), num_examples, altered)

    def simulated(
        self, round: int, client: int, sealed: Sealed, received: Mapping[str, Tensor], num_examples: int | None
    ) -> Message:
        """As :meth:`read`, the upload of a simulated client, each of whose local updates is its first."""
        return replace(self.read(round, client, sealed, received, num_examples), first_update=True)

    def truth(self, client: int) -> Truth:
        index = self._held(client)
        return Truth(self.federation.dataset.train_images[index].float() / 255, self.labels(client))

    def views(self, round: int, client: int, images: Tensor) -> Tensor | None:
        return views_of(self.federation, round, self.behind(round, client), self.store.download(round), images)

    def trained_clients(self, round: int) -> set[int]:
        """The clients whose local update of a round had an effect."""
        return self._updates.get(round, set())

    @cached_property
    def _updates(self) -> dict[int, set[int]]:
        agreement, records = self.federation.agreement, {record["round"]: record for record in self.folder.records()}
        return {round: merged_clients(record, participants(agreement, round)) for round, record in records.items() if round > 0}

    def number(self, round: int, client: int) -> int:
        """The number under which that round's message with this client's update is stored."""
        return client

    def labels(self, client: int) -> Tensor:
        return self.federation.data.labels("train").cpu()[self._held(client)]

    def holders(self) -> Sequence[int]:
        return self.federation.data.nonempty

    def told_classes(self, client: int) -> Tensor | None:
        counts = None if self.summed else self._class_counts.get(client)
        return None if counts is None else torch.tensor(counts)

    @cached_property
    def _class_counts(self) -> dict[int | None, tuple[int, ...]]:
        return {client: totals.classes for client, totals in told_totals(self.store.statistics()).items() if totals.classes}

    def set_guess(self, true: Tensor) -> float | None:
        return None if self.summed else most_common_share(self.label_sets(self.holders()))

    def texts(self, client: int) -> Tensor:
        trained, _ = self._texts()
        return self._tokens([trained[i] for i in self._held(client).tolist()])

    def public_texts(self) -> Tensor:
        return self._tokens(self._texts()[1])

    def rows(self, client: int) -> Tensor:
        return self._rows("train", self._held(client))

    def public_rows(self) -> Tensor:
        return self._rows("server", torch.arange(min(REFERENCES, len(self.federation.data.labels("server")))))

    def _rows(self, which: Whole, index: Tensor) -> Tensor:
        data = self.federation.data
        inputs = data.pick(which, index.to(data.device)).inputs
        assert isinstance(inputs, Tensor), "rows of a table are no pairs"
        return inputs.cpu()

    def public_images(self) -> PublicImages:
        return public_images(self.federation.dataset.test_images, self.federation.dataset.test_labels)

    def public_samples(self) -> Samples | None:
        data = self.federation.data
        chosen = balanced(data.labels("server"), self.classes)
        if not len(chosen):
            return None
        picked = data.pick("server", chosen)
        return Samples(each(picked.inputs, lambda part: part.cpu()), picked.labels.cpu())

    def alone(self, round: int, client: int, count: int) -> Alone:
        federation, recorder = recorded(self.federation)
        messages, samples = single_samples(self, round, client, count, federation), shared_out(self, client, count)
        if recorder is None:
            return Alone(messages, samples)
        images = {owner: self.truth(owner).images for owner, _ in samples}
        return Alone(messages, samples, recorder.views(torch.stack([images[owner][at] for owner, at in samples])))

    def shadows(self, round: int, client: int, data: DataOf, numbers: Sequence[int]) -> Iterator[Message | None]:
        download, message = self.store.download(round), self.message(round, client)
        assert download is not None
        updates = ShadowUpdates(self.federation, round, download, self.store.broadcast())
        return (None if it is None else message.simulated(it.uploaded) for it in updates.run(data, numbers))

    def regression(self, message: Message, samples: Split) -> RegressionInputs:
        return regression_inputs(self, message, own_update(self, message, samples))

    def samples_behind(self, message: Message) -> int:
        return message.num_examples or 10 * self.config.train.batch_size

    def server_labels(self) -> Tensor:
        return self.federation.data.labels("server")

    def server_samples(self, index: Tensor) -> Split:
        return self.federation.data.pick("server", index)

    def parameters(self) -> list[str]:
        return [name for name, _ in self.federation.resident.net.named_parameters()]

    def statistics(self) -> tuple[Statistic, ...]:
        schemas = (self.store.upload(*message).schema for message in self.messages())
        return listed(schemas, kinds_of_model(self.federation.resident.net))

    def lacking(self, client: int) -> Modality | None:
        return self.federation.data.lacking(client)

    def whole_clients(self, round: int) -> list[int]:
        """The clients with a kept message of that round and complete samples; for pairs, with both images and texts.

        Raises:
            FedprivError: there is none.
        """
        whole = [client for client in self.clients(round) if self.lacking(client) is None]
        if not whole:
            raise FedprivError(f"round {round}: every client whose message was kept lacks the images or the texts")
        return whole

    @cached_property
    def classes(self) -> int:  # type: ignore[override]
        return self.federation.agreement.declared.task.outputs

    @cached_property
    def numbers(self) -> bool:  # type: ignore[override]
        return self.federation.dataset.target is not None

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.federation.resident.net.input_shape

    @cached_property
    def encoder(self) -> Encoder | None:  # type: ignore[override]
        return self.federation.prepared.encoder

    @cached_property
    def encoding(self) -> RowEncoding | None:  # type: ignore[override]
        return row_encoding(self.federation.dataset.columns)

    @cached_property
    def modalities(self) -> tuple[Modality, ...]:  # type: ignore[override]
        dataset = self.federation.dataset
        there: dict[Modality, object] = {"image": dataset.images, "text": dataset.texts}
        return tuple(name for name, samples in there.items() if samples is not None)

    def _held(self, client: int) -> Tensor:
        return self.federation.data.indices("train", client).cpu()

    def _texts(self) -> tuple[Texts, Texts]:
        texts = self.federation.dataset.texts
        if texts is None:
            raise UsageError(f"{self.folder.path} was trained on images, and this needs texts")
        return texts

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        longest = self.federation.config.data.max_tokens
        assert self.encoder is not None and longest is not None
        return tokenise(texts, self.encoder.tokenizer, longest)[0].long()


def public_images(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first :data:`REFERENCES` of uint8 images ``(N, C, H, W)``, in [0, 1], and their labels."""
    return images[:REFERENCES].float().cpu() / 255, labels[:REFERENCES].cpu()


def row_encoding(columns: Sequence[Column]) -> RowEncoding | None:
    """The encoding of a table's rows, on which server and clients agreed; ``None`` without columns, as for arrays."""
    return RowEncoding(tuple(map(_known, columns))) if columns else None


def _known(column: Column) -> attackers.Column:
    if isinstance(column, NumberColumn):
        return attackers.NumberColumn(column.name, column.mean, column.std, column.gaps)
    return attackers.CategoryColumn(column.name, column.levels)
