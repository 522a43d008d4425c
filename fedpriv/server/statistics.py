"""Before round 1: the server gathers statistics of all clients' training rows, and answers with an encoding."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.data.encoding import Encoding
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.messages import LABEL, text_message, value_of
from fedpriv.data.statistics.private import check_declared, from_tensors, noisy_encoding, noisy_forms, sensitivity
from fedpriv.data.statistics.totals import Inquiry, Totals, added, from_row
from fedpriv.errors import FedprivError, UsageError
from fedpriv.privacy.accountant import noise_for
from fedpriv.secure import messages
from fedpriv.secure.protocol_checks import FEWEST, MOST
from fedpriv.seeding import generator
from fedpriv.server.masked_sum import MaskedSum, Step
from fedpriv.wire import Direction, Expected, Form, Payload, Refused, Sealed, seal, unseal

MOST_LEVELS_NAMED = 10_000
"""Levels of a column that a client may name; more are texts or identifiers."""


class Respondents(Protocol):
    """The clients, as the server reaches them before round 1."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the clients that are asked: all that hold training rows."""

    def answers(self, questions: Mapping[int, Sealed]) -> Iterable[tuple[int, Sealed]]:
        """Each client's answer to its question, in the order of the clients.

        Raises:
            FedprivError: a client has not answered.
        """


@dataclass(frozen=True)
class Crossed:
    """A message, and how often it crossed: one to all clients once for each of them; a secure sum never, as it is only kept."""

    direction: Direction
    message: Sealed
    times: int = 1


@dataclass(frozen=True)
class Gathered:
    """The encoding that follows from the clients' statistics, and the messages that led to it.

    Attributes:
        crossed: the messages, in their order; the last one is the encoding, for every client.
        noise: noise multiplier of the statistics, under differential privacy; 0: there is none.
    """

    encoding: Encoding
    crossed: tuple[Crossed, ...] = field(repr=False)
    noise: float = 0.0

    @property
    def message(self) -> Sealed:
        """The encoding as it is sent."""
        return self.crossed[-1].message

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        messages = [
            {"direction": crossed.direction, "times": crossed.times, "message": b64encode(crossed.message.data).decode()}
            for crossed in self.crossed
        ]
        return {"noise": self.noise, "messages": messages}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Gathered:
        """The inverse of :meth:`to_json`; :class:`ValueError` if the values are none of it."""
        try:
            crossed = [
                Crossed(value["direction"], unseal(b64decode(value["message"], validate=True)), int(value["times"]))
                for value in values["messages"]
            ]
            encoding = value_of(crossed[-1].message, "encoding", None, Encoding)
            return cls(encoding, tuple(crossed), float(values["noise"]))
        except (KeyError, IndexError, TypeError):
            raise ValueError("it does not hold the statistics of the clients") from None


def counted_classes(config: RunConfig, kind: SampleKind | None, classes: int) -> int:
    """The number of classes whose samples clients count: all of them, or 0 if the run needs no counts.

    The run needs the counts if it weighs classes, or if its data are a table and ``eval.metric`` is not set: the default score
    depends on whether classes are imbalanced.
    """
    ranks = kind is not None and bool(kind.columns) and config.eval.metric is None and config.privacy.level == "none"
    return classes if ranks or config.train.class_weights is not None else 0


def gather(clients: Respondents, kind: SampleKind, config: RunConfig, classes: int = 0) -> Gathered:
    """Ask all clients for statistics of their training rows.

    Args:
        classes: number of the classes whose samples are counted; 0: they are not.

    Raises:
        UsageError: no training row of any client has a number in some column; there are too few clients for a secure sum; or
            under differential privacy, bounds or levels of a column are not declared.
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

    noise = statistics_noise(config, kind)
    private, levels = config.privacy.level != "none", {name: set[str]() for name in kind.undeclared(data.levels)}
    if levels:
        question = text_message("columns", None, tuple(levels))
        for client, answer in ask(dict.fromkeys(clients.numbers, question)):
            for name, named in _named_levels(client, answer, levels.keys()).items():
                levels[name].update(named)
    inquiry = kind.inquiry(levels, classes)
    forms = noisy_forms(inquiry) if private else inquiry.forms
    if private and not (noise and sensitivity(inquiry)):
        encoding = noisy_encoding(kind, inquiry, (), data.bounds, data.levels)
        return Gathered(encoding, (Crossed("down", text_message("encoding", None, encoding), data.clients),))
    if not (inquiry.summed or inquiry.levels or inquiry.classes):
        encoding = kind.encoding(inquiry, Totals(0), data.levels)
        return Gathered(encoding, (Crossed("down", text_message("encoding", None, encoding), data.clients),))
    answers = dict(ask(dict.fromkeys(clients.numbers, text_message("inquiry", None, inquiry))))
    if config.wire.secure_aggregation:
        tensors = _summed(answers, forms, ask)
        crossed.append(Crossed("up", seal(Payload(tensors, 0, None, "statistics")), times=0))
    else:
        check = None if private else inquiry
        tensors = added([_statistics(client, answer, forms, check) for client, answer in answers.items()])
    if private:
        numbers = from_tensors(tensors)
        if config.privacy.level == "client":
            draw = generator(config.seed, "statistics")
            spread = torch.randn(len(numbers), generator=draw, dtype=torch.float64).numpy()
            numbers = numbers + noise * sensitivity(inquiry) * spread
        encoding = noisy_encoding(kind, inquiry, numbers.tolist(), data.bounds, data.levels)
    else:
        try:
            totals = Totals.of(tensors, inquiry)
        except Refused as reason:
            raise FedprivError(f"the sum of the clients' statistics is refused: {reason}") from None
        encoding = kind.encoding(inquiry, totals, data.levels)
    crossed.append(Crossed("down", text_message("encoding", None, encoding), data.clients))
    return Gathered(encoding, tuple(crossed), noise)


def statistics_noise(config: RunConfig, kind: SampleKind) -> float:
    """The noise multiplier of the statistics; 0: there is no differential privacy, or they are not asked.

    Raises:
        UsageError: bounds or levels of a column are not declared, or no epsilon is.
    """
    privacy = config.privacy
    if privacy.level == "none":
        return 0.0
    check_declared(kind, config.data.bounds, config.data.levels, privacy.level)
    return noise_multiplier(config) if kind.inquiry({}).summed else 0.0


def noise_multiplier(config: RunConfig) -> float:
    """The noise multiplier with which statistics spend their share of epsilon; 0: they have none.

    Raises:
        UsageError: the share is not known.
    """
    privacy = config.privacy
    epsilon = privacy.statistics_epsilon
    if epsilon is None:
        if privacy.target_epsilon is None:
            raise UsageError(
                f"privacy.level {privacy.level}: the samples are scaled by statistics of the rows; how much epsilon may these "
                "spend? --set privacy.statistics_epsilon=E; 0: there are none, and numbers are scaled by their bounds"
            )
        epsilon = privacy.target_epsilon / 10
    return noise_for(epsilon, privacy.delta, [((1.0, 1),)], privacy.accountant) if epsilon else 0.0


def _summed(answers: Mapping[int, Sealed], forms: Mapping[str, Form], ask: Step) -> dict[str, Tensor]:
    """The sum of the masked statistics, in which every client that was asked must be.

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

    size = sum(prod(size for size in form.shape if isinstance(size, int)) for form in forms.values())
    try:
        keys = {client: messages.own_key(answer, 0, client) for client, answer in answers.items()}
        _, words = MaskedSum(ask, 0, LABEL, refuse, check).sum(keys, size)
    except Refused as reason:
        raise FedprivError(f"the clients' statistics cannot be summed: {reason}") from None
    return from_row(words.view(np.int64), forms)


def _named_levels(client: int, message: Sealed, columns: Iterable[str]) -> Mapping[str, Sequence[str]]:
    try:
        named = value_of(message, "levels", client, dict[str, tuple[str, ...]])
        if named.keys() != set(columns):
            raise Refused("they are of other columns")
        if long := [name for name, levels in named.items() if len(levels) > MOST_LEVELS_NAMED]:
            raise Refused(f"{len(named[long[0]]):,} levels of column {long[0]!r}; at most {MOST_LEVELS_NAMED:,} are possible")
    except Refused as reason:
        raise FedprivError(f"the levels that client {client} sends are refused: {reason}") from None
    return named


def _statistics(client: int, message: Sealed, forms: Mapping[str, Form], inquiry: Inquiry | None) -> Mapping[str, Tensor]:
    """The tensors of a client's statistics.

    Args:
        inquiry: that they must answer exactly; ``None``: they are noisy.
    """
    try:
        tensors = Expected(0, client, forms, kind="statistics").check(message).tensors()
        if inquiry is not None:
            Totals.of(tensors, inquiry)
    except Refused as reason:
        raise FedprivError(f"the statistics that client {client} sends are refused: {reason}") from None
    return tensors
