"""Before round 1: the server gathers statistics of all clients' training rows, and answers with an encoding."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fedpriv.config import DataConfig
from fedpriv.data.encoding import Encoding
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.messages import read_text, text_message
from fedpriv.data.statistics.totals import Inquiry, Totals, added
from fedpriv.errors import FedprivError
from fedpriv.wire import Direction, Expected, Refused, Sealed, unseal

MOST_LEVELS_NAMED = 10_000
"""Levels of a column that a client may name; more are texts or identifiers."""


class Respondents(Protocol):
    """The clients, as the server reaches them before round 1."""

    @property
    def numbers(self) -> Sequence[int]:
        """Of the clients that are asked: those that hold training rows."""

    def answers(self, question: Sealed) -> Iterable[tuple[int, Sealed]]:
        """Each client's answer to a question, in the order of the clients.

        Raises:
            FedprivError: a client has not answered.
        """


@dataclass(frozen=True)
class Crossed:
    """A message that crossed, and how many times: one that is the same for all clients was sent to each."""

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


def gather(clients: Respondents, kind: SampleKind, data: DataConfig, classes: int = 0) -> Gathered:
    """Ask all clients for statistics of their training rows.

    Args:
        classes: number of the classes whose samples are counted; 0: they are not.

    Raises:
        UsageError: no training row of any client has a number in some column.
        FedprivError: what a client sends cannot be the statistics of any rows.
    """
    crossed, number = list[Crossed](), len(clients.numbers)

    def answers(question: Sealed) -> Iterator[tuple[int, Sealed]]:
        crossed.append(Crossed("down", question, number))
        for client, answer in clients.answers(question):
            crossed.append(Crossed("up", answer))
            yield client, answer

    levels = {name: set[str]() for name in kind.undeclared(data.levels)}
    if levels:
        for client, answer in answers(text_message("columns", None, tuple(levels))):
            for name, named in _named_levels(client, answer, levels.keys()).items():
                levels[name].update(named)
    inquiry = kind.inquiry(levels, classes)
    parts = [_statistics(client, answer, inquiry) for client, answer in answers(text_message("inquiry", None, inquiry))]
    encoding = kind.encoding(inquiry, Totals.of(added(parts), inquiry), data.levels)
    crossed.append(Crossed("down", text_message("encoding", None, encoding), data.clients))
    return Gathered(encoding, tuple(crossed))


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
