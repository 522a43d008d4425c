"""The server of a run, and its loop over the rounds. There is no other loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig, lookup
from fedpriv.errors import ClientDiverged, UploadRefused
from fedpriv.methods.base import ServerState
from fedpriv.optim.rates import rate_of_round
from fedpriv.privacy.ledger import ALL_CLIENTS, Ledger, Randomness
from fedpriv.secure.protocol_checks import check_summed, label_of
from fedpriv.server.arrivals import Arrivals
from fedpriv.server.best import BestRound
from fedpriv.server.clients import Clients, Instruction, Scorer
from fedpriv.server.next_state import LocalUpdates, Merger, Outcome
from fedpriv.server.round_record import RoundRecord
from fedpriv.server.sampling import Failures, failures, participants
from fedpriv.server.statistics import Crossed
from fedpriv.spans import UNTIMED, Clocks, Spans
from fedpriv.storage.checkpoints import Checkpoints, Progress
from fedpriv.storage.payloads import Kept, PayloadKeeper, PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import ByteMeter, Direction, Sealed, Tap, seal
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report

if TYPE_CHECKING:
    from fedpriv.server.secure_sum import SecureSumResult

_MODEL, _MEMORY, _CANARIES = "model.", "memory.", "canaries"
Messages = list[tuple[Direction, Sealed]]
"""The messages of an answer, each with its direction."""


class Server:
    """The server of one run. All that it knows of its clients are the messages that they send.

    Args:
        clients: how the server reaches its clients.
        scorer: evaluates the server's state.
        warn: called with warnings of one line.
        holders: under sample-level DP, the sets of clients that hold the same samples; ``None``: unknown, so each client is its
            own set.
        profile: times the categories of work.
        randomness: what the clients draw noise from.
        samples: client -> the number of training samples that it declared; needed at sample level, where it sets the steps.
        statistics: the messages that crossed before there was a run.

    Attributes:
        state: the global model and what the method remembers beside it.
        canaries: the run's canaries, if there are any.
        taps: called with (direction, message) for every message that crosses, in either direction.
        on_answer: called as clients answer, with the number of participants that have answered, and of all participants.
        on_participants: called before clients train, with the round and its participants.
        end_requested: whether the run ends as soon as a round is evaluated, and is then finished.
    """

    def __init__(
        self,
        agreement: Agreement,
        folder: RunFolder,
        clients: Clients,
        scorer: Scorer,
        warn: Callable[[str], None],
        holders: Sequence[Sequence[int]] | None = None,
        profile: Spans = UNTIMED,
        randomness: Randomness = "seed",
        samples: Mapping[int, int] = MappingProxyType({}),
        statistics: Sequence[Crossed] = (),
    ) -> None:
        self.agreement, self.folder, self.clients, self.scorer = agreement, folder, clients, scorer
        self.warn, self.profile, self.randomness, self.samples = warn, profile, randomness, samples
        self._statistics = statistics
        self.config: RunConfig = agreement.config
        self.meter = ByteMeter()
        self.taps: list[Tap] = [self.meter]
        self.on_answer: Callable[[int, int], None] | None = None
        self.on_participants: Callable[[int, Sequence[int]], None] | None = None
        self._payloads = PayloadKeeper(folder, self.config)
        with folder.writing("the checkpoints"):
            self.checkpoints = Checkpoints(folder.checkpoints, self.config.fingerprint(), clients)
        self.progress, self._best = Progress(), BestRound(self.config)
        self.is_private = self.config.privacy.level != "none"
        self._holders_unknown = holders is None and self.config.privacy.level == "sample"
        self._holders = [(client,) for client in agreement.trainable] if holders is None else holders
        self._merger = Merger(agreement, warn)
        self.canaries = self._merger.canaries
        self._secure = self.config.wire.secure_aggregation
        self.state = ServerState(agreement.initial)
        self._opened_sum: tuple[int, ...] | None = None
        """The clients of a secure sum that was opened for the present model but led to no new model; ``None``: no such sum."""
        self.stop_requested = self.end_requested = False
        self._scored = False
        """Whether the last round was evaluated."""
        self._late_clients = frozenset[int]()
        """The clients that train now, and whose answers come after the deadline."""

    # --- the rounds --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the server's first state, and play round 0: broadcast the initial model to every client."""
        method = self.agreement.method
        torch.set_num_threads(self.config.threads)
        for key, option in method.replaced_keys.items():
            if (value := lookup(self.config, key)) != lookup(RunConfig(), key):
                self.warn(f"{key} = {value} has no effect with method {method.name}, which uses {option} instead")
        began = Clocks.now()
        with self.folder.writing("metrics.jsonl"):
            self.folder.mend_records(-1)
        for crossed in self._statistics:
            for _ in range(crossed.times):
                self._tap(crossed.direction, crossed.message)
            self.keep_payload("statistics", crossed.message)
        self.state = method.start(self.agreement.initial.clone())
        if (broadcast := self._broadcast(self.state)) is not None:
            for _ in range(self.config.data.clients - len(self.clients.vacant)):
                self._tap("down", broadcast)
            self.keep_payload("down", broadcast)
            self.clients.welcome(broadcast)
        self._commit(RoundRecord(0), began)

    def restore(self) -> None:
        """Load the newest checkpoint that is whole, and warn of newer ones that are damaged.

        Raises:
            FedprivError: no checkpoint is whole.
            Damaged: a record or a kept payload of an earlier round is not what was written.
        """
        torch.set_num_threads(self.config.threads)
        initial = self.agreement.method.start(self.agreement.initial.clone())
        if (broadcast := self._broadcast(initial)) is not None:
            self.clients.welcome(broadcast)
        with self.folder.writing("the checkpoints"):
            self.progress, tensors, complaints = self.checkpoints.latest()
        for complaint in complaints:
            self.warn(f"{complaint}; going on from the checkpoint of round {self.progress.round}")
        self.state = self._state(tensors)
        if self.canaries is not None:
            self.canaries.scores = tensors[_CANARIES]
        opened = self.progress.record.get("opened")
        self._opened_sum = None if opened is None else tuple(opened)
        with self.folder.writing("metrics.jsonl"):
            self.folder.mend_records(self.progress.round)
        for record in self.folder.records():
            self._best.observe(record)
        PayloadStore.of(self.folder).verify()

    def state_of(self, round: int) -> ServerState:
        """The state after a round whose checkpoint is kept: one of the last ones, or the best (``progress.best``)."""
        return self._state(self.checkpoints.of_round(round)[1])

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Run the remaining rounds and yield the record of each, until the last or until ``stop_requested``."""
        while not (self.is_done or self.stop_requested):
            yield self.run_round()
            torch.set_num_threads(self.config.threads)  # the caller may have changed it

    @property
    def is_done(self) -> bool:
        """Whether the run has done its last round: that of ``train.rounds``, of ``train.patience``, or of ``end_requested``."""
        ends = self._best.is_out_of_patience or (self.end_requested and self._scored)
        return self.progress.round == self.config.train.rounds or ends

    def run_round(self) -> dict[str, Any]:
        """Run the next round, commit its checkpoint, and return its record."""
        began, round = Clocks.now(), self.progress.round + 1
        self.profile.begin(round)

        participants = self.participants(round)
        if self.on_participants is not None:
            self.on_participants(round, participants)
            torch.set_num_threads(self.config.threads)  # which it may have changed
        download = self._download(round)
        failing = failures(self.config, round, participants)
        arrivals = self._collect(round, participants, download, failing)
        updates = self._updates(round, arrivals)
        if self.config.privacy.level == "client":
            self.ledger.spend(ALL_CLIENTS, self.config.train.participation or 0.0, 1)
        with self.profile("aggregation"):
            outcome = self._merger.next(round, self.state, updates)
        self._adopt(round, outcome, updates.reports)

        record = RoundRecord(round)
        record.add_training(arrivals, updates, outcome, {**failing.reasons, **self.clients.missing()}, self._rate(round))
        record.metrics |= self.clients.measured()
        if self.is_private:
            record.metrics["epsilon"] = self.ledger.epsilon
        self._scored = self._is_scored(round)
        if self._scored:
            with self.profile("evaluation"):
                evaluation = self.scorer.score(self.state, self.progress.clients, round, outcome.uploads)
                record.add_scores(evaluation, self.scorer.untested, self.warn)
        record.add_clients(arrivals, updates, outcome, self._opened_sum)
        return self._commit(record, began)

    def participants(self, round: int) -> list[int]:
        """The clients of a round (1-based), by number."""
        return participants(self.agreement, round)

    def check_trained(self) -> None:
        """Check, after the last round, that the run has trained a model.

        Raises:
            FedprivError: uploads are summed, and no round had a sum that became the model.
        """
        if self._secure:
            check_summed(self.folder.records())

    # --- privacy -----------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What the run has spent so far."""
        return Ledger(self.config.privacy, self.progress.privacy, self._holders, self.agreement.spent_before)

    def statement(self) -> dict[str, Any]:
        """The run's privacy statement."""
        rate = self.config.train.participation or 0.0
        pooled = self.agreement.method.pools
        statement = self.ledger.statement(self.config.data.clients, rate, self.randomness, self._holders_unknown, pooled)
        if self.config.train.patience is not None:
            statement["not_covered"].append("which round is the last: validation samples decide that (train.patience)")
        return statement

    # --- the parts of a round ----------------------------------------------------------------------------------------

    def _broadcast(self, state: ServerState) -> Sealed | None:
        """The message that sends the initial model to every client; ``None``: the method has no round 0."""
        draft = self.agreement.method.broadcast(state)
        return None if draft is None else seal(draft)

    def _download(self, round: int) -> Sealed | None:
        """The message to the participants of a round; ``None``: the method does not communicate."""
        with self.profile("serialisation"):
            draft = self.agreement.method.download(self.state, round)
            if draft is None:
                return None
            download = seal(draft)
            self.keep_payload("down", download)
            return download

    def _collect(self, round: int, participants: Sequence[int], download: Sealed | None, failing: Failures) -> Arrivals:
        """Have the participants train, and check each answer as it arrives.

        Args:
            failing: participants of a simulation whose answers come late or never.
        """
        with self.profile("serialisation"):
            sent = {} if download is None else download.tensors()
        arrivals = Arrivals(self.agreement, round, participants, sent, self.samples)
        last = {client: self.progress.clients[client] for client in participants if client in self.progress.clients}
        instruction, absent = Instruction(round, participants, download, last), {*failing.dropped, *failing.late}
        # Late clients train first and apart: the others form the same groups and the same secure sum as without them.
        crossed = self._late(instruction.of(failing.late), sent) if failing.late else {}
        answers = self.clients.train(instruction.of([client for client in participants if client not in absent]))
        for number, answer in enumerate(self.profile.each("training", answers), 1):
            if self.on_answer is not None:
                self.on_answer(number, len(participants))
            messages = self._received(answer)
            if self._accepts(arrivals, answer):
                crossed[answer.client] = messages
        if download is not None:
            for _ in set(participants) - set(self.clients.not_sent()):
                self._tap("down", download)
        for client in participants:  # not in the order of arrival, or the kept payloads would depend on who is quickest
            for rate, steps in arrivals.charges(client) if client not in failing.dropped else ():
                self.ledger.spend(str(client), rate, steps)
            for direction, sealed in crossed.get(client, ()):
                if direction == "report" or not self._secure:
                    self.keep_payload(direction, sealed)
        return arrivals

    def _received(self, answer: Answer) -> Messages:
        """The messages of an answer, which cross."""
        messages: Messages = [] if answer.upload is None else [("up", answer.upload)]
        if not self.agreement.method.pools:
            messages.append(("report", answer.report))
        for direction, sealed in messages:
            self._tap(direction, sealed)
        return messages

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

    def _accepts(self, arrivals: Arrivals, answer: Answer) -> bool:
        """Check an answer, and return whether it is accepted; a refused answer is left out.

        Raises:
            UploadRefused, ClientDiverged: the run stops, as ``train.on_refused`` or ``train.on_nan`` says.
        """
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

    def _updates(self, round: int, arrivals: Arrivals) -> LocalUpdates:
        """The local updates that are merged: of the clients that trained; with secure aggregation, of those in the sum."""
        updates = arrivals.in_order()
        reports = [report for report, _ in updates]
        if not self._secure:
            return LocalUpdates(arrivals.sent, reports, [upload for _, upload in updates if upload is not None])
        summed = self._secure_sum(round, arrivals)
        clients = () if summed is None else summed.clients
        left_out = arrivals.keys.keys() - set(clients)
        self.clients.forget((client, round) for client in left_out if arrivals.reports[client].keeps)
        return LocalUpdates(arrivals.sent, [report for report in reports if report.client in clients], summed=summed)

    def _secure_sum(self, round: int, arrivals: Arrivals) -> SecureSumResult | None:
        """The sum of the clients' masked uploads; ``None``: there is none, for a reason that is warned of."""
        from fedpriv.server.secure_sum import SecureSum

        def on_opened(clients: tuple[int, ...]) -> None:
            self._opened_sum = clients

        examples = {client: report.num_examples for client, report in arrivals.reports.items()}
        label = label_of(self.folder.path.name, round)
        protocol = SecureSum(
            self.agreement, self.clients, label, round, arrivals.sent, self._tap, self.warn, on_opened, self._opened_sum
        )
        try:
            with self.profile("aggregation"):
                summed = protocol.sum(arrivals.keys, examples)
        except Refused as reason:
            self.warn(f"round {round}: there is no sum, so the model stays as it is: {reason}")
            return None
        self.keep_payload("sum", summed.mean)
        return summed

    def _adopt(self, round: int, outcome: Outcome, reports: Sequence[Report]) -> None:
        """Take over the new state; the clients' new private states count only if their uploads were merged."""
        self.state = outcome.state
        keepers = [report.client for report in reports if report.keeps]
        if outcome.left_out is None:
            self._opened_sum = None
            self.progress.clients |= dict.fromkeys(keepers, round)
        else:
            self.clients.forget((client, round) for client in keepers)

    def _rate(self, round: int) -> float | None:
        """The learning rate of a round, of a method with several phases that of the first; ``None``: all rounds have the same."""
        train = self.config.train
        if train.lr_schedule is None and train.lr_decay == 1:
            return None
        return rate_of_round(train, round, next((phase.lr for phase in self.agreement.method.phases(round)), None))

    def _is_scored(self, round: int) -> bool:
        """Whether the state is evaluated after this round."""
        if self.end_requested:
            return True
        last_rounds = round > self.config.train.rounds - self.config.eval.last
        return last_rounds or round % self.config.eval.every == 0

    # --- messages and the run folder ---------------------------------------------------------------------------------

    def _tap(self, direction: Direction, sealed: Sealed) -> None:
        for tap in self.taps:
            tap(direction, sealed)

    def keep_payload(self, direction: Kept, sealed: Sealed) -> None:
        """Write a message into the run folder, if ``wire.keep_payloads`` wants it."""
        if direction == "hidden" and sealed.client in self._late_clients:  # it is in no sum, and never crosses
            return
        with self.profile("checkpoint"):
            self._payloads(direction, sealed)

    def _commit(self, record: RoundRecord, began: Clocks) -> dict[str, Any]:
        """Write checkpoint and record of a round, and return the record."""
        progress, ended, round = self.progress, Clocks.now(), record.round
        seconds = ended.wall - began.wall
        up, down = self.meter.read()
        progress.round = round
        progress.total_bytes_up += up
        progress.total_bytes_down += down
        progress.seconds += seconds
        progress.cpu_seconds += ended.cpu - began.cpu + self.clients.cpu_seconds()
        traffic = {"bytes_up": up, "bytes_down": down}
        totals = {"total_bytes_up": progress.total_bytes_up, "total_bytes_down": progress.total_bytes_down}
        progress.record = {
            "round": round,
            "time_ms": int(time.time() * 1000),
            "metrics": {**record.metrics, **traffic, **totals, "seconds": seconds},
            "per_client": record.per_client,
            **record.clients,
        }
        self._best.observe(progress.record)
        progress.best = self._best.round
        with self.profile("checkpoint"), self.folder.writing(f"the checkpoint of round {round}"):
            if (checksum := self._payloads.close(round)) is not None:
                progress.record["payloads"] = checksum
            self.checkpoints.commit(progress, self._state_tensors())
            self.folder.append(progress.record)
        return progress.record

    def _state(self, tensors: Mapping[str, Tensor]) -> ServerState:
        """The server's state of a checkpoint's tensors."""
        row = self.agreement.space.pack(_with_prefix(_MODEL, tensors), torch.empty_like(self.agreement.initial))
        return ServerState(row, _with_prefix(_MEMORY, tensors))

    def _state_tensors(self) -> dict[str, Tensor]:
        """The server's state as a checkpoint holds it, by name."""
        model = self.agreement.space.unpack(self.state.row)
        return {
            **{_MODEL + name: tensor for name, tensor in model.items()},
            **{_MEMORY + name: tensor for name, tensor in self.state.memory.items()},
            **({} if self.canaries is None else {_CANARIES: self.canaries.scores}),
        }


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, by the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def on_divergence(config: RunConfig, warn: Callable[[str], None], client: int, round: int) -> None:
    """Stop the run, or warn and go on without the client's update, as ``train.on_nan`` says.

    Under client-level DP the run always goes on: stopping would reveal that this client took part, and no noise covers that.

    Raises:
        ClientDiverged: the run stops.
    """
    if config.train.on_nan == "stop" and config.privacy.level != "client":
        raise ClientDiverged(client, round, config.train.lr)
    warn(f"round {round}: client {client} diverged (its loss or its weights are not finite): what it trained is left out")
