"""The server of a run, and its loop over the rounds. There is no other loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig, lookup
from fedpriv.methods.base import ServerState
from fedpriv.optim.rates import rate_of_round
from fedpriv.privacy.ledger import ALL_CLIENTS, Ledger, Randomness
from fedpriv.secure.protocol_checks import check_summed, label_of
from fedpriv.server.answers.arrivals import Arrivals
from fedpriv.server.answers.collecting import Collector, OnAnswer
from fedpriv.server.answers.failing import failures
from fedpriv.server.best import BestRound
from fedpriv.server.clients import Clients, Instruction, Scorer
from fedpriv.server.next_state import LocalUpdates, Merger, Outcome
from fedpriv.server.round_record import RoundRecord
from fedpriv.server.sampling import participants
from fedpriv.server.saved_state import as_tensors, from_tensors
from fedpriv.server.statistics import Crossed
from fedpriv.server.traffic import Traffic
from fedpriv.spans import UNTIMED, Clocks, Spans
from fedpriv.storage.checkpoints import Checkpoints, Progress
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Sealed, seal
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Report

if TYPE_CHECKING:
    from fedpriv.server.secure_sum import SecureSumResult

_CANARIES = "canaries"
"""Name of the canaries' scores in a checkpoint."""


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
        taps: as of :class:`Traffic`.
        on_answer: called as clients answer; ``None``: nothing is called.
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
        self.warn, self.profile, self.randomness = warn, profile, randomness
        self._statistics = statistics
        self.config: RunConfig = agreement.config
        self.traffic = Traffic(folder, self.config, profile)
        self.taps = self.traffic.taps
        self.collector = Collector(agreement, clients, self.traffic, samples, warn, profile)
        self.on_answer: OnAnswer | None = None
        self.on_participants: Callable[[int, Sequence[int]], None] | None = None
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
            self.traffic.cross(crossed.direction, crossed.message, crossed.times)
            self.traffic.keep("statistics", crossed.message)
        self.state = method.start(self.agreement.initial.clone())
        if (broadcast := self._broadcast(self.state)) is not None:
            self.traffic.cross("down", broadcast, times=self.config.data.clients - len(self.clients.vacant))
            self.traffic.keep("down", broadcast)
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
        self.state = from_tensors(tensors, self.agreement.space, self.agreement.initial)
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
        return from_tensors(self.checkpoints.of_round(round)[1], self.agreement.space, self.agreement.initial)

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
        instruction = Instruction(round, participants, self._download(round), self.progress.clients)
        failing = failures(self.config, round, participants)
        arrivals = self.collector.collect(instruction, failing, self.on_answer)
        for client in participants:
            for rate, steps in arrivals.charges(client) if client not in failing.dropped else ():
                self.ledger.spend(str(client), rate, steps)
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
            self.traffic.keep("down", download)
            return download

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
            self.agreement, self.clients, label, round, arrivals.sent, self.traffic.cross, self.warn, on_opened, self._opened_sum
        )
        try:
            with self.profile("aggregation"):
                summed = protocol.sum(arrivals.keys, examples)
        except Refused as reason:
            self.warn(f"round {round}: there is no sum, so the model stays as it is: {reason}")
            return None
        self.traffic.keep("sum", summed.mean)
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

    def _commit(self, record: RoundRecord, began: Clocks) -> dict[str, Any]:
        """Write checkpoint and record of a round, and return the record."""
        progress, ended, round = self.progress, Clocks.now(), record.round
        seconds = ended.wall - began.wall
        up, down = self.traffic.meter.read()
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
            if (checksum := self.traffic.end_round(round)) is not None:
                progress.record["payloads"] = checksum
            canaries = {} if self.canaries is None else {_CANARIES: self.canaries.scores}
            self.checkpoints.commit(progress, as_tensors(self.state, self.agreement.space) | canaries)
            self.folder.append(progress.record)
        return progress.record
