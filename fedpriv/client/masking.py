"""A client's part in secure sums: its upload stays here until the others' keys are known, and leaves behind masks."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.files import checksum, load_json, remembered
from fedpriv.secure import messages
from fedpriv.secure.fixed_point import Array
from fedpriv.secure.layout import Layout
from fedpriv.secure.protocol import Participant
from fedpriv.secure.protocol_checks import label_of
from fedpriv.seeding import derive_key
from fedpriv.wire import Sealed
from fedpriv.wire.coding import is_model
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report


@dataclass
class Masking:
    """One client in the secure sums of a run.

    A model may be summed twice, as in a round that is run again because its server was killed, or in another run, since runs of
    one seed begin with the same uploads. Both sums must then be over the same clients and with the same weights: otherwise the
    difference of the two, or of their multiples, may be a single upload. The client remembers this by the model that it uploads,
    as methods differ in what goes with it: the row that it added, among whom it was masked, and who of them was active.

    Args:
        run: its name.
        rounds: a file of what the client added in each round of the run; ``None``: it keeps none, as in a simulation.
        sums: a folder of the sums that its models were in, of all runs, a file for each model; beside it may be a JSON file of
            the same name, where earlier versions kept them.

    Attributes:
        row: what it adds in this round ``(size,)``.
    """

    number: int
    agreement: Agreement
    run: str
    rounds: Path | None = None
    sums: Path | None = None
    row: Array | None = field(default=None, repr=False)
    _round: int = -1
    _model: str = ""
    _upload: str = ""
    _member: Participant | None = field(default=None, repr=False)

    def hold(self, answer: Answer, received: Mapping[str, Tensor], told: bytes = b"") -> Answer:
        """Keep the upload back, and send public keys in its place. The report says no loss any more: it is part of the sum.

        Args:
            told: what the server sent, the same to all clients of the sum: where one trains on another model, the uploads of the
                others may be known or cancel out.

        Raises:
            Refused: the upload is not what the client is to send, such as one over ``train.max_update_norm``, which no server can
                check.
        """
        self._member = self.row = None
        if answer.upload is None:
            return answer
        report = Report.of(answer.report)
        upload = self.agreement.expected(report.round, self.number, received).check(answer.upload)
        layout, tensors = Layout(self.agreement, received), upload.tensors()
        self.row, self._round = layout.row(tensors, report.num_examples, report.loss), report.round
        self._model = checksum({name: tensor for name, tensor in tensors.items() if is_model(name)})
        self._upload = answer.upload.digest
        least = self.agreement.config.train.min_uploads
        self._member = Participant(self.number, label_of(self.run, report.round), told, least)
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
        member, self._member = self._member, None
        answer = self._step(member, self.row, message)
        self._member = member  # only now: a client that has refused to confirm lists must not reveal shares under them later
        return answer

    def _step(self, member: Participant, row: Array, message: Sealed) -> Sealed:
        round, number = self._round, self.number
        if message.kind == "keys":
            rows = messages.rows_of(message, "keys", round, number)
            letters = member.share({client: messages.read_public(row) for client, row in rows.items()})
            return messages.table("letters", round, number, letters)
        if message.kind == "letters":
            rows = messages.rows_of(message, "letters", round, number)
            words = member.masked(row, rows, self.rounding())
            self._check_round(row)
            self._check_sum("masked", row, {*rows, number})
            return messages.masked(round, number, words)
        if message.kind == "members":
            active, dropped = messages.members_of(message, round, number)
            confirmed = member.confirm(active, dropped)
            self._check_sum("active", row, active)
            return messages.table("confirmed", round, number, confirmed)
        if message.kind == "confirmed":
            shares = member.reveal(messages.rows_of(message, "confirmed", round, number))
            return messages.table("shares", round, number, shares)
        raise Refused(f"a message of kind {message.kind} in a secure sum")

    def rounding(self) -> bytes:
        """The seed (32 bytes) of the fixed-point numbers' rounding. It hides nothing, and comes from the run's seed, so that a
        deployed run has a simulation's bits."""
        return derive_key(self.agreement.config.seed, self._round, self.number, "rounding")

    def _check_round(self, row: Array) -> None:
        """Refuse to add another row in a round that is run again: those of the others may be the same, and cancel out.

        Raises:
            Refused: it is another.
        """
        if self.rounds is not None and not remembered(self.rounds, str(self._round), _digest(row.tobytes())):
            raise Refused(f"round {self._round} was summed before, over another upload of client {self.number}")

    def _check_sum(self, these: Literal["masked", "active"], row: Array, clients: Collection[int]) -> None:
        """Refuse a sum of the model over other clients than before, or with other weights.

        It is checked before the masked upload leaves, among whom it is masked: later would be too late, since a server may have
        each sum revealed by other clients. Among the same ones it cannot, and who of them is active is checked before shares
        leave: a sum takes the shares of more than half of them, and two such halves have a client in common.

        Args:
            these: what the clients are: those among whom the model is masked, or the active ones of them.

        Raises:
            Refused: it is another sum.
        """
        if self.sums is None:
            return
        among = _digest(repr(sorted(clients)).encode())
        file = self.sums.with_suffix(".json")
        earlier = load_json(file) if file.exists() else {}
        called = {"masked": self._upload, "active": f"{self._upload} active"}[these]  # in that file
        self.sums.mkdir(exist_ok=True)
        said = f"{among} {_digest(row.tobytes())}"
        if earlier.get(called, among) != among or not remembered(self.sums / self._model, these, said):
            raise Refused(
                f"round {self._round}: client {self.number} sent the same model before, to a sum over other clients or with "
                "other weights, and the two together would show an upload; give each run a seed of its own"
            )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
