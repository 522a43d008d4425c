"""The clients of a run, as a server reaches them on other machines: one frame to each, and whatever comes back in time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedpriv.agreement import Agreement
from fedpriv.deploy.client_node import UNKNOWN_RUN
from fedpriv.deploy.frames import Envelope, Frame, line_of
from fedpriv.deploy.handshake import Facts
from fedpriv.deploy.transport import NOT_SENT
from fedpriv.evaluation.protocols import client_summary
from fedpriv.methods.base import ServerState
from fedpriv.server.clients import Clients, Instruction
from fedpriv.wire import ByteMeter, Payload, Sealed, seal
from fedpriv.wire.coding import Upload
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report

Warn = Callable[[str], None]


class Grid(Protocol):
    """Carries frames to clients by number, and their answers back."""

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """Give each client its frame.

        Args:
            seconds: when to stop waiting.
            round: for logs.

        Yields:
            (client, its answer, or in a line why there is none); a client without either is not there at the end.
        """

    def close(self) -> None:
        """Release what it holds."""


@dataclass(frozen=True)
class _Task:
    """Something that a client is to do; ``facts`` say what, ``message`` belongs to it."""

    facts: Mapping[str, Any]
    message: Sealed | None = None


class RemoteClients(Clients):
    """Clients of other machines.

    What needs no answer of its own (the terms, the initial model, states that may go) waits for the next frame to its client, and
    is sent again with each until one was answered.

    Args:
        run: the run's name, under which clients keep what is theirs.
        terms: what every client has to agree to, for one that has lost it.
        samples: client -> how many it has declared, by what they are for; it takes part with as many.
        seconds: how long an answer may take.
        warn: called with warnings of one line.
    """

    def __init__(
        self,
        grid: Grid,
        run: str,
        terms: Mapping[str, Any],
        samples: Mapping[int, Mapping[str, int]],
        seconds: float,
        warn: Warn,
    ) -> None:
        self.grid, self.run, self.seconds, self.warn = grid, run, seconds, warn
        self._terms = {client: _Task({"do": "agree", **terms, "samples": known}) for client, known in samples.items()}
        self._welcome = list[_Task]()
        self._waiting: dict[int, list[_Task]] = {client: [] for client in samples}
        self._missing = dict[int, str]()
        self._last_said, self._declined = dict[int, str](), dict[int, str]()
        self._not_sent = set[int]()
        self._session = secrets.token_hex(8)
        """Tells a frame that is sent again from the same one of a server that was started again, whose secure sum is another."""

    def welcome(self, broadcast: Sealed) -> None:
        self._welcome = [_Task({"do": "welcome"}, broadcast)]
        for tasks in self._waiting.values():
            tasks += self._welcome

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        return self._ask("train", instruction)

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        return self._ask("test", instruction)

    def step(self, round: int, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        envelopes = {client: [*self._waiting[client], _Task({"do": "step"}, question)] for client, question in questions.items()}
        for client, frame in self._exchange(envelopes, round):
            try:
                if (found := frame.sealed(_last_said(frame).get("message"))) is None:
                    raise Refused("it says nothing")
            except Refused as reason:
                self._misses(client, round, f"what it sent is none: {reason}")
                continue
            yield client, found

    def damaged(self, states: Mapping[int, int]) -> str | None:
        return None  # a client whose state is gone says so when it is to go on from it

    def forget(self, states: Iterable[tuple[int, int]]) -> None:
        for client, round in states:
            self._waiting[client].append(_Task({"do": "forget", "rounds": [round]}))

    def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
        kept: dict[int, list[int]] = {number: [] for number in self._waiting}
        for client, round in states:
            kept[client].append(round)
        for client, rounds in kept.items():
            self._waiting[client].append(_Task({"do": "keep_only", "rounds": sorted(rounds)}))

    def missing(self) -> Mapping[int, str]:
        return self._missing

    def not_sent(self) -> Collection[int]:
        return self._not_sent

    def close(self) -> None:
        self.grid.close()

    def agree(self) -> dict[int, dict[str, Any]]:
        """Have every client take the terms; what each answers, by client. One that does not is missing."""
        found = {}
        for client, frame in self._exchange({client: [terms] for client, terms in self._terms.items()}, 0):
            if frame.said and isinstance(frame.said[-1], dict):
                found[client] = frame.said[-1]
        return found

    def _ask(self, what: str, instruction: Instruction) -> Iterator[Answer]:
        envelopes = {}
        for client in instruction.clients:
            facts = {"do": what, "round": instruction.round, "last": instruction.last.get(client)}
            envelopes[client] = [*self._waiting[client], _Task(facts, instruction.message)]
        self._missing, self._not_sent = {}, set()
        for client, frame in self._exchange(envelopes, instruction.round):
            try:
                if what == "test" and (why := _last_said(frame).get("untested")) is not None:
                    self._declines(client, instruction.round, line_of(why))
                    continue
                answer = _answer(client, frame)
            except Refused as reason:
                self._misses(client, instruction.round, f"what it sent is none: {reason}")
                continue
            yield answer

    def _exchange(self, envelopes: Mapping[int, Sequence[_Task]], round: int) -> Iterator[tuple[int, Frame]]:
        """Send tasks to each client, and yield the frames of those that did them all."""
        frames = {}
        for client, tasks in envelopes.items():
            envelope = Envelope()
            for task in tasks:
                envelope.say(task.facts, message=task.message)
            frames[client] = envelope.frame(run=self.run, session=self._session)
        silent = dict.fromkeys(frames, True)
        for client, frame in self.grid.exchange(frames, self.seconds, round):
            if not silent.pop(client, False):
                self.warn(f"round {round}: client {client} answers although it was not asked, or has answered before")
                continue
            why = frame if isinstance(frame, str) else frame.error
            if why is not None:
                self._misses(client, round, why)
                if frame == NOT_SENT:
                    self._not_sent.add(client)
                if self._missing[client].startswith(UNKNOWN_RUN):
                    self._waiting[client] = [self._terms[client], *self._welcome]
                continue
            assert isinstance(frame, Frame)
            self._waiting[client] = []
            yield client, frame
        for client in silent:
            self._misses(client, round, f"it has not answered within {self.seconds:g} s")

    def _declines(self, client: int, round: int, why: str) -> None:
        """It takes no test; a warning says so once, and not in each round."""
        self._missing[client] = why
        if self._declined.get(client) != why:
            self.warn(f"round {round}: client {client} is not tested: {why}")
        self._declined[client] = why

    def _misses(self, client: int, round: int, why: Any) -> None:
        self._missing[client] = line_of(why)
        said = f"round {round}: client {client} gives no answer: {self._missing[client]}"
        if self._last_said.get(client) != said:  # a round asks twice, for a local update and for a test
            self.warn(said)
        self._last_said[client] = said


@dataclass
class RemoteScorer:
    """Scores a server's state by the clients' tests alone: the server has no data.

    Attributes:
        facts: what the clients declared, in order.
    """

    agreement: Agreement
    clients: RemoteClients
    facts: Sequence[Facts]
    meter: ByteMeter = field(default_factory=ByteMeter)
    untested: dict[int, str] = field(default_factory=dict)

    def score(
        self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Upload] = ()
    ) -> tuple[dict[str, float], list[float | None] | None]:
        """Metrics of the pass, with the bytes of its messages, and each client's accuracy (``None``: no test samples, or no
        answer); no list: the method learns without labels."""
        method = self.agreement.method
        if not method.objective.labels:
            return {}, None
        names = method.shared_names
        message = seal(Payload(self.agreement.space.unpack(server.row, names), round)) if names else None
        accuracies, refused = list[float | None]([None] * len(self.facts)), dict[int, str]()
        tested = [one.client for one in self.facts if one.test]
        states = {client: last[client] for client in tested if client in last}
        for answer in self.clients.test(Instruction(round, tested, message, states)):
            self.meter("report", answer.report)
            try:
                accuracies[answer.client] = _accuracy(answer, round, self.facts[answer.client].test)
            except Refused as reason:
                refused[answer.client] = line_of(reason)
                self.clients.warn(f"round {round}: the test of client {answer.client} is refused: {refused[answer.client]}")
        self.untested = {**self.clients.missing(), **refused}
        if message is not None:
            for _ in set(tested) - set(self.clients.not_sent()):
                self.meter("down", message)
        up, down = self.meter.read()
        metrics = {"bytes_up_tests": float(up), "bytes_down_tests": float(down)}
        if all(accuracy is None for accuracy in accuracies):
            return metrics, accuracies
        return {**client_summary(accuracies, [one.test for one in self.facts]), **metrics}, accuracies


def _last_said(frame: Frame) -> Mapping[str, Any]:
    if not frame.said or not isinstance(frame.said[-1], dict):
        raise Refused("it says nothing")
    return frame.said[-1]


def _answer(client: int, frame: Frame) -> Answer:
    upload, report = (frame.sealed(_last_said(frame).get(name)) for name in ("upload", "report"))
    if report is None:
        raise Refused("it has no report")
    return Answer(client, upload, report)


def _accuracy(answer: Answer, round: int, samples: int) -> float | None:
    report = Report.of(answer.report)
    if (report.round, report.client) != (round, answer.client):
        raise Refused(f"it is of client {report.client} in round {report.round}")
    if report.num_examples != samples:  # by which it is weighted
        raise Refused(f"it reports {report.num_examples} test samples and declared {samples}")
    if report.accuracy is not None and not 0 <= report.accuracy <= 1:
        raise Refused(f"an accuracy of {report.accuracy:g}")
    return report.accuracy
