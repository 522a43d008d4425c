"""The messages of a run as observations, and the true data to score reconstructions against.

The messages are the sealed payloads that the run kept. The images, texts and labels behind them are not stored: they are rebuilt
from the run's config and checked against its partition hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from fedpriv.audit.record.alteration import alteration
from fedpriv.audit.record.attacker_view import AttackerView
from fedpriv.audit.record.base import Message, Truth
from fedpriv.audit.record.views import views_of
from fedpriv.audit.results import Sender
from fedpriv.client.client import check_download
from fedpriv.data.dataset import Texts
from fedpriv.data.tokens import tokenise
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.samples import Modality
from fedpriv.server.payloads import PayloadStore
from fedpriv.server.records import counted
from fedpriv.server.run_folder import RunFolder
from fedpriv.server.sampling import participants
from fedpriv.simulation.reopening import damaged_partition, reopened
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Sealed
from fedpriv.wire.coding import decoded
from fedpriv.wire.message import Refused


class RunRecord:
    """The kept messages of a run.

    Attributes:
        summed: whether each is the sum of some clients' uploads (:mod:`fedpriv.audit.record.sums`).
        corrections: of messages by (round, client), as far as they were computed (:mod:`fedpriv.audit.record.earlier_updates`).

    Raises:
        UsageError: there is no run, the data have changed since its training, or it kept no payload.
        Damaged: a file of the run is not what was written.
    """

    summed = False

    def __init__(self, run_dir: Path) -> None:
        self.folder = RunFolder.open(run_dir)
        self.store = self._stored()
        if not self.store.rounds():
            again = "train it again with `--keep-payloads default`; a method that sends nothing (local) has none"
            raise UsageError(f"{run_dir} kept no payloads, so there is nothing to attack: {again}")
        config = self.folder.config()
        self.config = config.model_copy(update={"executor": config.executor.here()})
        self.corrections: dict[tuple[int, int], dict[str, Tensor]] = {}

    def _stored(self) -> PayloadStore:
        return PayloadStore.of(self.folder)

    def sender(self, round: int, client: int) -> Sender:
        """Whose message it is: a client's, or a secure sum of several clients'."""
        return Sender(client)

    def of_sums(self) -> list[str]:
        """What the server learns by sums behind masks, in sentences; none without sums."""
        return []

    @cached_property
    def attacker(self) -> AttackerView:
        """The messages as attackers see them."""
        return AttackerView(self)

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
        found = [(r, c) for r in rounds for c in self.store.clients(r) if round in (None, r) and client in (None, c)]
        if not found:
            some = "; ".join(f"round {r}: {', '.join(map(str, self.store.clients(r)))}" for r in rounds if round in (None, r))
            raise UsageError(f"no payload of client {client} was kept; there are those of {some}")
        return found

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
        """The client's training data, without augmentation."""
        index = self._held(client)
        return Truth(self.federation.dataset.train_images[index].float() / 255, self.labels(client))

    def views(self, round: int, client: int, images: Tensor) -> Tensor | None:
        """The client's images ``(n, C, H, W)`` and the augmented views of its local update ``(n, V, C, H, W)``; ``None``: without
        any."""
        return views_of(self.federation, round, self.behind(round, client), self.store.download(round), images)

    def trained_clients(self, round: int) -> set[int]:
        """The clients whose local update of a round had an effect."""
        return self._updates.get(round, set())

    @cached_property
    def _updates(self) -> dict[int, set[int]]:
        agreement, records = self.federation.agreement, {record["round"]: record for record in self.folder.records()}
        return {round: counted(record, participants(agreement, round)) for round, record in records.items() if round > 0}

    def number(self, round: int, client: int) -> int:
        """Under which number a message of another round is kept that has a local update of the client."""
        return client

    def behind(self, round: int, client: int) -> list[int]:
        """The clients whose local updates are behind a message."""
        return [client]

    def labels(self, client: int) -> Tensor:
        """The labels of the client's training data ``(n,)``."""
        return self.federation.data.labels("train").cpu()[self._held(client)]

    def texts(self, client: int) -> Tensor:
        """Token ids ``(n, L)`` of the client's training data, truncated as in training."""
        trained, _ = self._texts()
        return self._tokens([trained[i] for i in self._held(client).tolist()])

    def public_texts(self) -> Tensor:
        """Token ids ``(m, L)`` of the test split."""
        return self._tokens(self._texts()[1])

    def whole_clients(self, round: int) -> list[int]:
        """The clients with a kept message of that round and complete samples; for pairs, with both images and texts.

        Raises:
            FedprivError: there is none.
        """
        found = [client for client in self.store.clients(round) if self.federation.data.lacking(client) is None]
        if not found:
            raise FedprivError(f"round {round}: every client whose message was kept lacks the images or the texts")
        return found

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The kind of the run's samples: images, texts, or pairs of both."""
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
        encoder, longest = self.federation.prepared.encoder, self.federation.config.data.max_tokens
        assert encoder is not None and longest is not None
        return tokenise(texts, encoder.tokenizer, longest)[0].long()
