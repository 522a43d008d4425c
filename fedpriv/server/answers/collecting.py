"""Collects the answers of a round: the participants train, and each answer is checked as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig
from fedpriv.errors import ClientDiverged, UploadRefused
from fedpriv.server.answers.arrivals import Arrivals
from fedpriv.server.answers.failing import Failures
from fedpriv.server.clients import Clients, Instruction
from fedpriv.server.traffic import Traffic
from fedpriv.spans import Spans
from fedpriv.wire import Direction, Sealed
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer

OnAnswer = Callable[[int, int], None]
"""Called as clients answer, with the number of participants that have answered, and of all participants."""
Messages = list[tuple[Direction, Sealed]]
"""The messages of an answer, each with its direction."""


class Collector:
    """Has the participants of a round train, and collects their answers.

    Args:
        samples: client -> the number of training samples that it declared.
        warn: called with a line for each answer that is left out.
        profile: times the categories of work.
    """

    def __init__(
        self,
        agreement: Agreement,
        clients: Clients,
        traffic: Traffic,
        samples: Mapping[int, int],
        warn: Callable[[str], None],
        profile: Spans,
    ) -> None:
        self.agreement, self.config, self.clients, self.traffic = agreement, agreement.config, clients, traffic
        self.samples, self.warn, self.profile = samples, warn, profile
        self._late_clients = frozenset[int]()
        """The clients that train now, and whose answers come after the deadline."""

    def collect(self, instruction: Instruction, failing: Failures, on_answer: OnAnswer | None) -> Arrivals:
        """The answers to an instruction, checked; the messages of those that are accepted are kept.

        Args:
            failing: participants of a simulation whose answers come late or never.

        Raises:
            UploadRefused, ClientDiverged: the run stops, as ``train.on_refused`` or ``train.on_nan`` says.
        """
        participants, download = instruction.clients, instruction.message
        with self.profile("serialisation"):
            sent = {} if download is None else download.tensors()
        arrivals = Arrivals(self.agreement, instruction.round, participants, sent, self.samples)
        absent = {*failing.dropped, *failing.late}
        # Late clients train first and apart: the others form the same groups and the same secure sum as without them.
        crossed = self._late(instruction.of(failing.late), sent) if failing.late else {}
        answers = self.clients.train(instruction.of([client for client in participants if client not in absent]))
        for number, answer in enumerate(self.profile.each("training", answers), 1):
            if on_answer is not None:
                on_answer(number, len(participants))
            messages = self._received(answer)
            if self._accepts(arrivals, answer):
                crossed[answer.client] = messages
        if download is not None:
            self.traffic.cross("down", download, times=len(set(participants) - set(self.clients.not_sent())))
        for client in participants:  # not in the order of arrival, or the kept payloads would depend on who is quickest
            for direction, message in crossed.get(client, ()):
                if direction == "report" or not self.config.wire.secure_aggregation:
                    self.traffic.keep(direction, message)
        return arrivals

    def keep_held_back(self, upload: Sealed) -> None:
        """Keep an upload that its client holds back for a secure sum; that of a late client is in no sum, and never crosses."""
        if upload.client not in self._late_clients:
            self.traffic.keep("hidden", upload)

    def _late(self, instruction: Instruction, sent: Mapping[str, Tensor]) -> dict[int, Messages]:
        """Have clients train whose answers come after the deadline; client -> its messages, if they are what was asked for.

        They are sent, so an eavesdropper has them. The server does not read them, as in a deployment, and the clients go on from
        their last local update that was merged.
        """
        crossed, arrivals = {}, Arrivals(self.agreement, instruction.round, instruction.clients, sent, self.samples)
        self._late_clients = frozenset(instruction.clients)
        for answer in self.profile.each("training", self.clients.train(instruction)):
            messages = self._received(answer)
            with suppress(Refused):
                arrivals.take(answer)
                crossed[answer.client] = messages
            self.clients.forget([(answer.client, instruction.round)])
        self._late_clients = frozenset()
        return crossed

    def _received(self, answer: Answer) -> Messages:
        """The messages of an answer, which cross."""
        messages: Messages = [] if answer.upload is None else [("up", answer.upload)]
        if not self.agreement.method.pools:
            messages.append(("report", answer.report))
        for direction, message in messages:
            self.traffic.cross(direction, message)
        return messages

    def _accepts(self, arrivals: Arrivals, answer: Answer) -> bool:
        """Check an answer, and return whether it is accepted; a refused answer is left out."""
        try:
            with self.profile("serialisation"):
                report = arrivals.take(answer)
        except Refused as reason:
            self._refuse(answer.client, arrivals.round, reason)
            if answer.client not in arrivals.reports:
                self.clients.forget([(answer.client, arrivals.round)])
            return False
        if report.diverged:
            on_divergence(self.config, self.warn, report.client, arrivals.round)
        return True

    def _refuse(self, client: int, round: int, reason: Refused) -> None:
        """Leave an answer out, or stop the run, as ``train.on_refused`` says; under client-level DP, leave it out."""
        message = f"round {round}: what client {client} sent is refused: {reason}"
        if self.config.train.on_refused == "stop" and self.config.privacy.level != "client":
            raise UploadRefused(f"{message}; train.on_refused=drop goes on without it")
        self.warn(message)


def on_divergence(config: RunConfig, warn: Callable[[str], None], client: int, round: int) -> None:
    """Stop the run, or warn and go on without the client's update, as ``train.on_nan`` says.

    Under client-level DP the run always goes on: stopping would reveal that this client took part, and no noise covers that.

    Raises:
        ClientDiverged: the run stops.
    """
    if config.train.on_nan == "stop" and config.privacy.level != "client":
        raise ClientDiverged(client, round, config.train.lr)
    warn(f"round {round}: client {client} diverged (its loss or its weights are not finite): what it trained is left out")
