"""Before round 1: the server gathers statistics of all clients' training rows, and answers with an encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedpriv.config import DataConfig
from fedpriv.data.encoding import Encoding
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.messages import read_text, text_message
from fedpriv.data.statistics.totals import Inquiry, Totals, added
from fedpriv.errors import FedprivError
from fedpriv.wire import Direction, Expected, Refused, Sealed

MOST_LEVELS_NAMED = 10_000
"""Levels of a column that a client may name; more are texts or identifiers."""


class Respondents(Protocol):
    """The clients, as the server reaches them before round 1."""

    def levels(self) -> Iterable[tuple[int, Sealed]]:
        """The levels that each client names."""

    def answers(self, question: Sealed) -> Iterable[tuple[int, Sealed]]:
        """Each client's answer to an inquiry."""


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
        classes: the number of samples of each class over all clients; none: they were not asked for.
        crossed: the messages, in their order.
    """

    encoding: Encoding
    classes: tuple[int, ...] = ()
    crossed: tuple[Crossed, ...] = field(default=(), repr=False)


def gather(clients: Respondents, number: int, kind: SampleKind, data: DataConfig, classes: int = 0) -> Gathered:
    """Ask all clients for statistics of their training rows.

    Args:
        number: of the clients.
        classes: number of the classes whose samples are counted; 0: they are not.

    Raises:
        UsageError: no training row of any client has a number in some column.
        FedprivError: what a client sends cannot be the statistics of any rows.
    """
    crossed, parts = list[Crossed](), list[Mapping[str, Tensor]]()
    levels = {name: set[str]() for name in kind.undeclared(data.levels)}
    for client, message in clients.levels() if levels else ():
        crossed.append(Crossed("up", message))
        for name, named in _named_levels(client, message, levels.keys()).items():
            levels[name].update(named)
    inquiry = kind.inquiry(levels, classes)
    question = text_message("inquiry", None, inquiry)
    crossed.append(Crossed("down", question, number))
    for client, message in clients.answers(question):
        crossed.append(Crossed("up", message))
        parts.append(_statistics(client, message, inquiry))
    totals = Totals.of(added(parts), inquiry)
    encoding = kind.encoding(inquiry, totals, data.levels)
    crossed.append(Crossed("down", text_message("encoding", None, encoding), number))
    return Gathered(encoding, totals.classes, tuple(crossed))


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
