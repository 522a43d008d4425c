"""A client's part in secure aggregation: it holds its upload back, and sends it masked once it has the others' keys."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.files import checksum, remembered
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

    The same model may be summed twice: a round is repeated if its server was killed, and runs with the same seed begin with the
    same uploads. Both sums must then be over the same clients and with the same weights. Otherwise the difference of the sums, or
    of multiples of them, may be a single upload. So the client remembers, for each model that it uploads, the row that it added,
    the clients among whom it was masked, and which of them were active.

    Args:
        run: name of the run.
        rounds: a file of what the client added in each round of the run; ``None``: it keeps none, as in a simulation.
        sums: a folder of the sums of all runs, a file for each model; ``None``: it keeps none.

    Attributes:
        row: what the client adds to this round's sum ``(size,)``.
    """

    number: int
    agreement: Agreement
    run: str
    rounds: Path | None = None
    sums: Path | None = None
    row: Array | None = field(default=None, repr=False)
    _round: int = -1
    _model: str = ""
    _member: Participant | None = field(default=None, repr=False)

    def hold(self, answer: Answer, received: Mapping[str, Tensor], sent_to_all: bytes = b"") -> Answer:
        """Hold the upload back, and send public keys in its place. The loss moves from the report into the sum.

        Args:
            sent_to_all: bytes that must be equal for all clients of the sum; otherwise the server could send one client a
                different model and learn the others' uploads.

        Raises:
            Refused: the upload is not valid, such as one over ``train.max_update_norm``, which the server cannot check.
        """
        self._member = self.row = None
        if answer.upload is None:
            return answer
        report = Report.of(answer.report)
        upload = self.agreement.expected(report.round, self.number, received).check(answer.upload)
        layout, tensors = Layout(self.agreement, received), upload.tensors()
        self.row, self._round = layout.row(tensors, report.num_examples, report.loss), report.round
        self._model = checksum({name: tensor for name, tensor in tensors.items() if is_model(name)})
        min_clients = self.agreement.config.train.min_uploads
        self._member = Participant(self.number, label_of(self.run, report.round), sent_to_all, min_clients)
        own = {self.number: messages.public(self._member.advertise())}
        keys = messages.table("keys", report.round, self.number, own)
        return Answer(self.number, keys, replace(report, loss=None, numbers={}).seal())

    def answer(self, message: Sealed) -> Sealed:
        """Answer a message of the round's sum.

        Raises:
            Refused: the message is out of turn, or the answer would show more than the sum.
        """
        if self._member is None or self.row is None or message.round != self._round:
            raise Refused(f"client {self.number} holds no upload of round {message.round}")
        member, self._member = self._member, None
        answer = self._step(member, self.row, message)
        self._member = member  # only now: after refusing to confirm lists, a client must reveal no shares for them
        return answer

    def _step(self, member: Participant, row: Array, message: Sealed) -> Sealed:
        round, number = self._round, self.number
        if message.kind == "keys":
            rows = messages.rows_of(message, "keys", round, number)
            encrypted = member.share({client: messages.read_public(row) for client, row in rows.items()})
            return messages.table("letters", round, number, encrypted)
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
        """The seed (32 bytes) of the fixed-point numbers' rounding. It need not be secret, and comes from the run's seed, so
        that a deployed run equals a simulation to the bit."""
        return derive_key(self.agreement.config.seed, self._round, self.number, "rounding")

    def _check_round(self, row: Array) -> None:
        """In a round that is repeated, refuse to add another row than before.

        The others may add the same rows as before, and the difference of the two sums would show this client's.

        Raises:
            Refused: the row differs from the earlier one.
        """
        if self.rounds is not None and not remembered(self.rounds, str(self._round), _digest(row.tobytes())):
            raise Refused(f"round {self._round} was summed before, over another upload of client {self.number}")

    def _check_sum(self, kind: Literal["masked", "active"], row: Array, clients: Collection[int]) -> None:
        """Refuse a sum of the same model over other clients than before, or with other weights.

        The clients among whom the upload is masked are checked before it is sent: afterwards, the server could have two sums,
        each revealed by clients that did not see the other. The active clients are checked before shares are revealed: a sum
        takes the shares of a majority, and two majorities of the same clients have one in common.

        Args:
            kind: whether the clients are those among whom the upload is masked, or the active ones of them.

        Raises:
            Refused: the clients or the weights differ from the earlier sum's.
        """
        if self.sums is None:
            return
        self.sums.mkdir(exist_ok=True)
        clients_and_row = f"{_digest(repr(sorted(clients)).encode())} {_digest(row.tobytes())}"
        if not remembered(self.sums / self._model, kind, clients_and_row):
            raise Refused(
                f"round {self._round}: client {self.number} sent the same model before, to a sum over other clients or with "
                "other weights, and the two together would show an upload; give each run a seed of its own"
            )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
