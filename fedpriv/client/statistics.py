"""A client's part in the statistics of all training rows, before round 1."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.messages import LABEL, text_message, value_of
from fedpriv.data.statistics.private import Bounds, as_tensors, contribution, sensitivity
from fedpriv.data.statistics.totals import Inquiry, as_row
from fedpriv.errors import UsageError
from fedpriv.files import remembered
from fedpriv.noise_source import RandomSource, Words
from fedpriv.secure import messages
from fedpriv.secure.protocol import Participant
from fedpriv.wire import Payload, Refused, Sealed, seal


@dataclass(frozen=True)
class PrivateStatistics:
    """A client's statistics under differential privacy.

    Attributes:
        noise: multiplier of the noise that the client adds; 0: the server adds it (client level).
        source: of noise that is drawn by the question, so that the same question gets the same noise.
    """

    bounds: Bounds
    noise: float
    source: RandomSource

    def __call__(self, rows: TrainingRows, inquiry: Inquiry) -> dict[str, Tensor]:
        if inquiry.levels:
            raise UsageError("counts of levels under differential privacy; they are declared (data.levels)")
        numbers = contribution(rows, inquiry, self.bounds, by_client=not self.noise)
        if self.noise:
            draws = self.source.noise("statistics", repr(inquiry)).normal(numbers.shape).double().numpy()
            numbers = numbers + self.noise * sensitivity(inquiry) * draws
        return as_tensors(numbers)


@dataclass(eq=False)
class Respondent:
    """A client that is asked for statistics of its training rows (:mod:`fedpriv.data.statistics.messages`).

    Attributes:
        private: how it makes them private; ``None``: it sends them as they are.
        secure: whether it sends its statistics behind masks.
        setup: what the server must have sent to all clients of a secure sum alike, besides the question.
        sums: a file of the clients of its earlier secure sums: two sums of the same rows over other clients would show
            single clients' statistics; ``None``: it keeps none, as in a simulation.
    """

    number: int
    rows: TrainingRows
    private: PrivateStatistics | None = None
    secure: bool = False
    setup: bytes = b""
    sums: Path | None = None
    _member: Participant | None = field(default=None, repr=False)
    _words: Words | None = field(default=None, repr=False)

    def answer(self, question: Sealed) -> Sealed:
        """The levels of some columns that it may name, its statistics, or a step of their secure sum.

        Raises:
            Refused: the message is no such question, or out of turn.
            UsageError: the question is about columns that it has not, or a number is too large to be summed.
        """
        if question.kind == "columns":
            if self.private is not None:
                raise UsageError("names of levels under differential privacy; they are declared (data.levels)")
            columns = value_of(question, "columns", None, tuple[str, ...])
            return text_message("levels", self.number, self.rows.levels(columns))
        if question.kind != "inquiry":
            return self._step(question)
        tensors = self._statistics(value_of(question, "inquiry", None, Inquiry))
        if not self.secure:
            return seal(Payload(tensors, 0, self.number, "statistics"))
        self._words = as_row(tensors).view(np.uint64)
        self._member = Participant(self.number, LABEL, question.data + self.setup)
        return messages.table("keys", 0, self.number, {self.number: messages.public(self._member.advertise())})

    def _statistics(self, inquiry: Inquiry) -> Mapping[str, Tensor]:
        return self.rows.totals(inquiry).tensors() if self.private is None else self.private(self.rows, inquiry)

    def _step(self, message: Sealed) -> Sealed:
        """Answer a message of the secure sum."""
        member, words, number = self._member, self._words, self.number
        if member is None or words is None:
            raise Refused(f"client {number} takes part in no sum of statistics")
        self._member = None
        if message.kind == "keys":
            rows = messages.rows_of(message, "keys", 0, number)
            letters = member.share({client: messages.read_public(row) for client, row in rows.items()})
            answer = messages.table("letters", 0, number, letters)
        elif message.kind == "letters":
            rows = messages.rows_of(message, "letters", 0, number)
            self._check_clients(words, [*rows, number])
            answer = messages.masked(0, number, member.masked_words(words, rows))
        elif message.kind == "members":
            active, dropped = messages.members_of(message, 0, number)
            if dropped:
                raise Refused(f"client {dropped[0]} has dropped out, and the statistics are of all clients")
            answer = messages.table("confirmed", 0, number, member.confirm(active, dropped))
        elif message.kind == "confirmed":
            shares = member.reveal(messages.rows_of(message, "confirmed", 0, number))
            answer = messages.table("shares", 0, number, shares)
        else:
            raise Refused(f"a message of kind {message.kind} in a sum of statistics")
        self._member = member  # only now: after a refusal, a client must reveal no shares
        return answer

    def _check_clients(self, words: Words, clients: list[int]) -> None:
        """Refuse a sum of the same statistics over other clients than before."""
        if self.sums is not None and not remembered(
            self.sums, hashlib.sha256(words.tobytes()).hexdigest(), repr(sorted(clients))
        ):
            raise Refused("the same statistics were summed before over other clients, and the two sums would show a client's")
