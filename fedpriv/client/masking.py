"""A client's part in secure sums: its upload stays here until the others' keys are known, and leaves behind masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.files import load_json, save_json
from fedpriv.secure import messages
from fedpriv.secure.fixed_point import Array
from fedpriv.secure.layout import Layout
from fedpriv.secure.protocol import Participant
from fedpriv.secure.terms import label_of
from fedpriv.seeding import derive_key
from fedpriv.wire import Sealed
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report


@dataclass
class Masking:
    """One client in the secure sums of a run.

    A round that is run again, as its server was killed, may be summed again, but over the same uploads: the difference of two
    sums would be a single upload. So may an upload in another run: one of the same config and seed begins with the same uploads.

    Args:
        run: its name.
        memory: a file of the sums that the client took part in; ``None``: it keeps none, as in a simulation.
        uploads: the same of all runs, by upload.

    Attributes:
        row: what it adds in this round ``(size,)``.
    """

    number: int
    agreement: Agreement
    run: str
    memory: Path | None = None
    uploads: Path | None = None
    row: Array | None = field(default=None, repr=False)
    _round: int = -1
    _upload: str = ""
    _member: Participant | None = field(default=None, repr=False)

    def hold(self, answer: Answer, received: Mapping[str, Tensor]) -> Answer:
        """Keep the upload back, and send public keys in its place. The report says no loss any more: it is part of the sum.

        Raises:
            Refused: the upload is not what the client is to send, such as one over ``train.max_update_norm``, which no server can
                check.
        """
        self._member = self.row = None
        if answer.upload is None:
            return answer
        report = Report.of(answer.report)
        upload = self.agreement.expected(report.round, self.number, received).check(answer.upload)
        layout = Layout(self.agreement, received)
        self.row, self._round = layout.row(upload.tensors(), report.num_examples, report.loss), report.round
        self._upload = answer.upload.digest
        self._member = Participant(self.number, label_of(self.run, report.round))
        own = {self.number: messages.public(self._member.advertise())}
        keys = messages.table("keys", report.round, self.number, own)
        return Answer(self.number, keys, replace(report, loss=None, numbers={}).seal())

    def answer(self, message: Sealed) -> Sealed:
        """Take the next step of the round's sum.

        Raises:
            Refused: it is out of turn, or would tell more than the sum.
        """
        if self._member is None or self.row is None or message.round != self._round:
            raise Refused(f"client {self.number} holds no upload of round {message.round}")
        round, number, member = self._round, self.number, self._member
        if message.kind == "keys":
            rows = messages.rows_of(message, "keys", round, number)
            letters = member.share({client: messages.read_public(row) for client, row in rows.items()})
            return messages.table("letters", round, number, letters)
        if message.kind == "letters":
            rows = messages.rows_of(message, "letters", round, number)
            words = member.masked(self.row, rows, self.rounding())
            upload, clients = hashlib.sha256(self.row.tobytes()).hexdigest(), sorted({*rows, number})
            self._remember(clients=member.clients, masked=clients, upload=upload)
            self._remember_upload(clients)
            return messages.masked(round, number, words)
        if message.kind == "members":
            active, dropped = messages.members_of(message, round, number)
            confirmed = member.confirm(active, dropped)
            self._remember(active=active)
            return messages.table("confirmed", round, number, confirmed)
        if message.kind == "confirmed":
            shares = member.reveal(messages.rows_of(message, "confirmed", round, number))
            return messages.table("shares", round, number, shares)
        raise Refused(f"a message of kind {message.kind} in a secure sum")

    def rounding(self) -> bytes:
        """The seed (32 bytes) of the fixed-point numbers' rounding. It hides nothing, and comes from the run's seed, so that a
        deployed run has a simulation's bits."""
        return derive_key(self.agreement.config.seed, self._round, self.number, "rounding")

    def _remember(self, **about: Any) -> None:
        """Refuse a second sum of a round over other clients, or of another upload, before its masked upload leaves.

        At the end it would be too late: a server may have each sum revealed by other clients. Among the same clients it cannot,
        since more than half of them are needed, and two such halves have a client in common.

        Raises:
            Refused: this would be one.
        """
        if self.memory is None:
            return
        known: dict[str, Any] = load_json(self.memory) if self.memory.exists() else {}
        before = known.setdefault(str(self._round), {})
        for what, said in about.items():
            if before.setdefault(what, said) != said:
                raise Refused(
                    f"round {self._round} was summed before, over other clients or another upload of client {self.number}"
                )
        save_json(self.memory, known)

    def _remember_upload(self, clients: list[int]) -> None:
        """Refuse a sum of the upload over other clients than in another run.

        Raises:
            Refused: this would be one.
        """
        if self.uploads is None:
            return
        known: dict[str, Any] = load_json(self.uploads) if self.uploads.exists() else {}
        over = hashlib.sha256(repr(clients).encode()).hexdigest()
        if known.setdefault(self._upload, over) != over:
            raise Refused(
                f"round {self._round}: client {self.number} sent the same upload in another run, to a sum over other clients, "
                "and the difference of the two would show an upload; give each run a seed of its own"
            )
        save_json(self.uploads, known)
