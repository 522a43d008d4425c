"""Before round 1: the server gathers statistics of all clients' training rows, and answers with an encoding."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.data.encoding import Encoding
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.messages import LABEL, read_text, text_message
from fedpriv.data.statistics.totals import Inquiry, Totals, added, from_row
from fedpriv.errors import FedprivError, UsageError
from fedpriv.secure import messages
from fedpriv.secure.protocol_checks import FEWEST, MOST
from fedpriv.server.masked_sum import MaskedSum, Step
from fedpriv.wire import Direction, Expected, Payload, Refused, Sealed, seal, unseal

MOST_LEVELS_NAMED = 10_000
"""Levels of a column that a client may name; more are texts or identifiers."""


class Respondents(Protocol):
    """The clients, as the server reaches them before round 1."""

    @property
    def numbers(self) -> Sequence[int]:
        """Of the clients that are asked: those that hold training rows."""

    def answers(self, questions: Mapping[int, Sealed]) -> Iterable[tuple[int, Sealed]]:
        """Each client's answer to its question, in the order of the clients.

        Raises:
            FedprivError: a client has not answered.
        """


@dataclass(frozen=True)
class Crossed:
    """A message, and how many times it crossed: one for all clients went to each; a secure sum, which is kept, never crossed."""

    direction: Direction
    message: Sealed
    times: int = 1


@dataclass(frozen=True)
class Gathered:
    """What came of the statistics.

    Attributes:
        crossed: the messages, in their order; the last one is the encoding, for every client.
    """

    encoding: Encoding
    crossed: tuple[Crossed, ...] = field(repr=False)

    @property
    def message(self) -> Sealed:
        """The encoding as it is sent."""
        return self.crossed[-1].message

    def to_json(self) -> list[dict[str, Any]]:
        """All messages as JSON values."""
        return [
            {"direction": crossed.direction, "times": crossed.times, "message": b64encode(crossed.message.data).decode()}
            for crossed in self.crossed
        ]

    @classmethod
    def from_json(cls, values: list[dict[str, Any]]) -> Gathered:
        """The inverse of :meth:`to_json`; :class:`ValueError` if the values are none of it."""
        try:
            crossed = [
                Crossed(value["direction"], unseal(b64decode(value["message"], validate=True)), int(value["times"]))
                for value in values
            ]
            return cls(read_text(crossed[-1].message, "encoding", None, Encoding), tuple(crossed))
        except (KeyError, IndexError, TypeError):
            raise ValueError("it does not hold the statistics of the clients") from None


def gather(clients: Respondents, kind: SampleKind, config: RunConfig, classes: int = 0) -> Gathered:
    """Ask all clients for statistics of their training rows.

    Args:
        classes: number of the classes whose samples are counted; 0: they are not.

    Raises:
        UsageError: no training row of any client has a number in some column; or there are too few clients for a secure sum.
        FedprivError: what a client sends cannot be the statistics of any rows.
    """
    crossed, data = list[Crossed](), config.data

    def ask(questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        distinct = {question.digest: question for question in questions.values()}
        times = Counter(question.digest for question in questions.values())
        crossed.extend(Crossed("down", question, times[digest]) for digest, question in distinct.items())
        for client, answer in clients.answers(questions):
            crossed.append(Crossed("up", answer))
            yield client, answer

    levels = {name: set[str]() for name in kind.undeclared(data.levels)}
    if levels:
        question = text_message("columns", None, tuple(levels))
        for client, answer in ask(dict.fromkeys(clients.numbers, question)):
            for name, named in _named_levels(client, answer, levels.keys()).items():
                levels[name].update(named)
    inquiry = kind.inquiry(levels, classes)
    answers = dict(ask(dict.fromkeys(clients.numbers, text_message("inquiry", None, inquiry))))
    if config.wire.secure_aggregation:
        tensors = _summed(answers, inquiry, ask)
        crossed.append(Crossed("up", seal(Payload(tensors, 0, None, "statistics")), times=0))
    else:
        tensors = added([_statistics(client, answer, inquiry) for client, answer in answers.items()])
    try:
        totals = Totals.of(tensors, inquiry)
    except Refused as reason:
        raise FedprivError(f"the sum of the clients' statistics is refused: {reason}") from None
    encoding = kind.encoding(inquiry, totals, data.levels)
    crossed.append(Crossed("down", text_message("encoding", None, encoding), data.clients))
    return Gathered(encoding, tuple(crossed))


def _summed(answers: Mapping[int, Sealed], inquiry: Inquiry, ask: Step) -> dict[str, Tensor]:
    """The sum of the statistics that the clients send behind masks, of all of them.

    Args:
        answers: the clients' public keys.
    """
    if not FEWEST <= len(answers) <= MOST:
        raise UsageError(
            f"wire.secure_aggregation: statistics of {len(answers)} clients with training rows; {FEWEST} to {MOST} are needed"
        )

    def refuse(line: str) -> None:
        raise FedprivError(f"the clients' statistics cannot be summed: {line}")

    def check(active: tuple[int, ...], asked: int) -> None:
        if len(active) < asked:
            raise Refused(f"{len(active)} of {asked} clients are left")

    size = sum(prod(size for size in form.shape if isinstance(size, int)) for form in inquiry.forms.values())
    try:
        keys = {client: messages.own_key(answer, 0, client) for client, answer in answers.items()}
        _, words = MaskedSum(ask, 0, LABEL, refuse, check).sum(keys, size)
    except Refused as reason:
        raise FedprivError(f"the clients' statistics cannot be summed: {reason}") from None
    return from_row(words.view(np.int64), inquiry.forms)


def _named_levels(client: int, message: Sealed, columns: Iterable[str]) -> Mapping[str, Sequence[str]]:
    try:
        named = read_text(message, "levels", client, dict[str, tuple[str, ...]])
        if named.keys() != set(columns):
            raise Refused("they are of other columns")
        if long := [name for name, levels in named.items() if len(levels) > MOST_LEVELS_NAMED]:
            raise Refused(f"{len(named[long[0]]):,} levels of column {long[0]!r}; at most {MOST_LEVELS_NAMED:,} are possible")
    except Refused as reason:
        raise FedprivError(f"the levels that client {client} sends are refused: {reason}") from None
    return named


def _statistics(client: int, message: Sealed, inquiry: Inquiry) -> Mapping[str, Tensor]:
    try:
        tensors = Expected(0, client, inquiry.forms, kind="statistics").check(message).tensors()
        Totals.of(tensors, inquiry)
    except Refused as reason:
        raise FedprivError(f"the statistics that client {client} sends are refused: {reason}") from None
    return tensors
