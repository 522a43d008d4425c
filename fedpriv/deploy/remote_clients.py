"""The server's view of clients on other machines: a frame to each, and the answers that arrive in time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedpriv.agreement import Agreement
from fedpriv.deploy.client.setups import UNKNOWN_RUN
from fedpriv.deploy.facts import Facts
from fedpriv.deploy.frames import Envelope, Frame, one_line
from fedpriv.deploy.transport import NotSent
from fedpriv.evaluation.protocols import by_client
from fedpriv.methods.base import ServerState
from fedpriv.scores.catalogue import Scores
from fedpriv.scores.tasks import Task
from fedpriv.server.clients import Clients, Evaluation, Instruction
from fedpriv.wire import ByteMeter, Payload, Sealed, seal
from fedpriv.wire.coding import Upload
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report

Warn = Callable[[str], None]


class Grid(Protocol):
    """Carries frames to clients by number, and their answers back."""

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """Send each client its frame, and wait for the answers.

        Args:
            seconds: timeout.
            round: for logs.

        Yields:
            (client, its answer, or why there is none). A client that does not answer in time may be left out.
        """


@dataclass(frozen=True)
class _Request:
    """A request to a client, and the message that belongs to it."""

    facts: Mapping[str, Any]
    message: Sealed | None = None


class RemoteClients(Clients):
    """Clients on other machines.

    Requests whose answers are not waited for (to store the initial model, to delete states) are added to the next frame to the
    client, and repeated until one was answered.

    Args:
        run: the run's name, under which clients keep what belongs to it.
        setup: what every client has to agree to; it is sent again to a client that has lost it.
        samples: client -> the numbers of training and test samples that it declared.
        seconds: timeout of an answer.
        warn: called with warnings of one line.
        encoding: by which the clients scale and code their samples; ``None``: they know it.
    """

    def __init__(
        self,
        grid: Grid,
        run: str,
        setup: Mapping[str, Any],
        samples: Mapping[int, Mapping[str, int]],
        seconds: float,
        warn: Warn,
        encoding: Sealed | None = None,
    ) -> None:
        self.grid, self.run, self.seconds, self.warn = grid, run, seconds, warn
        setup = {"do": "agree", **setup, "encoding": encoding and encoding.digest}
        self._setup = {client: _Request({**setup, "samples": counts}, encoding) for client, counts in samples.items()}
        self._welcome = list[_Request]()
        self._waiting: dict[int, list[_Request]] = {client: [] for client in samples}
        self._missing = dict[int, str]()
        self._warnings, self._declined = dict[int, str](), dict[int, str]()
        self._not_sent = set[int]()
        self.silent = set[int]()
        """Clients that have not answered their last request."""
        self._session = secrets.token_hex(8)
        """Part of every frame. After a restart of the server it differs, so clients do not answer from before: the secure
        aggregation is another one."""

    def welcome(self, broadcast: Sealed) -> None:
        self._welcome = [_Request({"do": "welcome"}, broadcast)]
        for requests in self._waiting.values():
            requests += self._welcome

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        return self._ask("train", instruction)

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        return self._ask("test", instruction)

    def step(self, round: int, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        requests = {
            client: [*self._waiting[client], _Request({"do": "step"}, question)] for client, question in questions.items()
        }
        for client, frame in self._exchange(requests, round):
            try:
                if (message := frame.sealed(_last_entry(frame).get("message"))) is None:
                    raise Refused("it has no message")
            except Refused as reason:
                self._add_missing(client, round, f"its answer is invalid: {reason}")
                continue
            yield client, message

    def damaged(self, states: Mapping[int, int]) -> str | None:
        return None  # a client that has lost its state says so when it is to continue from it

    def forget(self, states: Iterable[tuple[int, int]]) -> None:
        for client, round in states:
            self._waiting[client].append(_Request({"do": "forget", "rounds": [round]}))

    def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
        kept: dict[int, list[int]] = {number: [] for number in self._waiting}
        for client, round in states:
            kept[client].append(round)
        for client, rounds in kept.items():
            self._waiting[client].append(_Request({"do": "keep_only", "rounds": sorted(rounds)}))

    def missing(self) -> Mapping[int, str]:
        return self._missing

    def not_sent(self) -> Collection[int]:
        return self._not_sent

    def agree(self) -> dict[int, dict[str, Any]]:
        """Have every client accept the setup; client -> its answer. Clients that do not are missing."""
        answers = {}
        for client, frame in self._exchange({client: [request] for client, request in self._setup.items()}, 0):
            if frame.entries and isinstance(frame.entries[-1], dict):
                answers[client] = frame.entries[-1]
        return answers

    def _ask(self, what: str, instruction: Instruction) -> Iterator[Answer]:
        requests = {}
        for client in instruction.clients:
            facts = {"do": what, "round": instruction.round, "last": instruction.last.get(client)}
            requests[client] = [*self._waiting[client], _Request(facts, instruction.message)]
        self._missing, self._not_sent = {}, set()
        for client, frame in self._exchange(requests, instruction.round):
            try:
                if what == "test" and (why := _last_entry(frame).get("untested")) is not None:
                    self._add_declined(client, instruction.round, one_line(why))
                    continue
                answer = _answer(client, frame)
            except Refused as reason:
                self._add_missing(client, instruction.round, f"its answer is invalid: {reason}")
                continue
            yield answer

    def _exchange(self, requests: Mapping[int, Sequence[_Request]], round: int) -> Iterator[tuple[int, Frame]]:
        """Send each client its requests, and yield the answers of those that did all of them."""
        frames = {}
        for client, entries in requests.items():
            envelope = Envelope()
            for entry in entries:
                envelope.add(entry.facts, message=entry.message)
            frames[client] = envelope.frame(run=self.run, session=self._session)
        unanswered = set(frames)
        self.silent |= frames.keys()
        for client, frame in self.grid.exchange(frames, self.seconds, round):
            if client not in unanswered:
                self.warn(f"round {round}: client {client} answers although it was not asked, or has answered before")
                continue
            unanswered.remove(client)
            why = frame if isinstance(frame, str) else frame.error
            if why is not None:
                self._add_missing(client, round, why)
                if isinstance(frame, NotSent):
                    self._not_sent.add(client)
                if self._missing[client].startswith(UNKNOWN_RUN):  # it gets the setup with its next frame
                    self.silent.discard(client)
                    self._waiting[client] = [self._setup[client], *self._welcome]
                continue
            assert isinstance(frame, Frame)
            self._waiting[client] = []
            self.silent.discard(client)
            yield client, frame
        for client in filter(unanswered.__contains__, frames):
            self._add_missing(client, round, f"it has not answered within {self.seconds:g} s")

    def _add_declined(self, client: int, round: int, why: str) -> None:
        """Note that a client takes no test; the warning is not repeated in later rounds."""
        self._missing[client] = why
        if self._declined.get(client) != why:
            self.warn(f"round {round}: client {client} is not tested: {why}")
        self._declined[client] = why

    def _add_missing(self, client: int, round: int, why: Any) -> None:
        self._missing[client] = one_line(why)
        warning = f"round {round}: client {client} gives no answer: {self._missing[client]}"
        if self._warnings.get(client) != warning:  # a round asks twice, for a local update and for a test
            self.warn(warning)
        self._warnings[client] = warning


@dataclass
class RemoteScorer:
    """Evaluates the server's model by the clients' tests alone: the server has no data.

    Attributes:
        facts: what the clients declared, in order.
    """

    agreement: Agreement
    clients: RemoteClients
    facts: Sequence[Facts]
    meter: ByteMeter = field(default_factory=ByteMeter)
    untested: dict[int, str] = field(default_factory=dict)

    def score(self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Upload] = ()) -> Evaluation:
        """The clients' scores with their summaries, and the bytes of the test's messages; nothing of a method without labels."""
        method = self.agreement.method
        if not method.objective.labels:
            return Evaluation({})
        names = method.shared_names
        message = seal(Payload(self.agreement.space.unpack(server.row, names), round)) if names else None
        scores, refused = list[Scores | None]([None] * len(self.facts)), dict[int, str]()
        tested = [client.client for client in self.facts if client.test]
        states = {client: last[client] for client in tested if client in last}
        for answer in self.clients.test(Instruction(round, tested, message, states)):
            self.meter("report", answer.report)
            try:
                scores[answer.client] = _scores(answer, round, self.facts[answer.client].test, self.agreement.declared.task)
            except Refused as reason:
                refused[answer.client] = one_line(reason)
                self.clients.warn(f"round {round}: the test of client {answer.client} is refused: {refused[answer.client]}")
        self.untested = {**self.clients.missing(), **refused}
        if message is not None:
            for _ in set(tested) - set(self.clients.not_sent()):
                self.meter("down", message)
        up, down = self.meter.read()
        summaries, per_client = by_client(scores, [client.test for client in self.facts], self.agreement.declared.task.usual)
        return Evaluation({**summaries, "bytes_up_tests": float(up), "bytes_down_tests": float(down)}, per_client)


def _last_entry(frame: Frame) -> Mapping[str, Any]:
    if not frame.entries or not isinstance(frame.entries[-1], dict):
        raise Refused("it has no entry")
    return frame.entries[-1]


def _answer(client: int, frame: Frame) -> Answer:
    upload, report = (frame.sealed(_last_entry(frame).get(name)) for name in ("upload", "report"))
    if report is None:
        raise Refused("it has no report")
    return Answer(client, upload, report)


def _scores(answer: Answer, round: int, samples: int, task: Task) -> Scores:
    """The scores that a client reports of its test.

    Raises:
        Refused: they are of another test, a name is none of the task's scores, or a value cannot be.
    """
    report = Report.of(answer.report)
    if (report.round, report.client) != (round, answer.client):
        raise Refused(f"it is of client {report.client} in round {report.round}")
    if report.num_examples != samples:  # by which scores are weighted
        raise Refused(f"it reports {report.num_examples} test samples and declared {samples}")
    known = {score.name: score for score in task.scores}
    for name, value in report.scores.items():
        if name not in known:
            raise Refused(f"it reports {one_line(name)}, which is none of {', '.join(known)}")
        if not known[name].low <= value <= known[name].high:
            raise Refused(f"it reports a score {name} of {value:g}")
    return report.scores
