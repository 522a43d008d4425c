"""The server half of a run, and its loop over the rounds. There is no other loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig, lookup
from fedpriv.errors import ClientDiverged, UploadRefused
from fedpriv.methods.base import ServerState
from fedpriv.privacy.ledger import ALL_CLIENTS, Ledger, Randomness
from fedpriv.secure.protocol_checks import check_summed, label_of
from fedpriv.server.arrivals import Arrivals
from fedpriv.server.checkpoint import Checkpoints, Progress
from fedpriv.server.clients import Clients, Instruction, Scorer
from fedpriv.server.next_state import LocalUpdates, Merger, Outcome
from fedpriv.server.payloads import PayloadKeeper, PayloadStore
from fedpriv.server.reported import means
from fedpriv.server.run_folder import RunFolder
from fedpriv.server.sampling import participants
from fedpriv.spans import UNTIMED, Clocks, Spans
from fedpriv.wire import ByteMeter, Direction, Sealed, Tap, seal
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Report

if TYPE_CHECKING:
    from fedpriv.server.secure_sum import Summed

_MODEL, _MEMORY, _CANARIES = "model.", "memory.", "canaries"


class Server:
    """One run as its server sees it: rounds, each followed by its evaluation, its checkpoint and its record.

    Args:
        clients: how it reaches its clients; all that it knows of them are the messages that come back.
        scorer: evaluates the server's state.
        warn: called with warnings of one line.
        holders: at sample level, the sets of clients that hold a sample in common; ``None``: it is not known of any.
        profile: times the categories of work.
        randomness: what the clients draw noise from.
        samples: client -> the number of training samples that it declared; needed at sample level, where its steps depend on it.

    Attributes:
        server: its state.
        canaries: those of the run, if there are any.
        taps: called with (direction, message) for every message that crosses, in either direction.
        on_answer: called as clients answer, with the number of those of the round that have, and of all of them.
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
    ) -> None:
        self.agreement, self.folder, self.clients, self.scorer = agreement, folder, clients, scorer
        self.warn, self.profile, self.randomness, self.samples = warn, profile, randomness, samples
        self.config: RunConfig = agreement.config
        self.meter = ByteMeter()
        self.taps: list[Tap] = [self.meter]
        self.on_answer: Callable[[int, int], None] | None = None
        self._keeper = PayloadKeeper(folder, self.config)
        self._keep = profile.timed("checkpoint", self._keeper)
        with folder.writing("the checkpoints"):
            self.checkpoints = Checkpoints(folder.checkpoints, self.config.fingerprint(), clients)
        self.progress = Progress()
        self.is_private = self.config.privacy.level != "none"
        self._apart = holders is None and self.config.privacy.level == "sample"
        self._holders = [(client,) for client in agreement.trainable] if holders is None else holders
        self._merger = Merger(agreement, warn)
        self.canaries = self._merger.canaries
        self._secure = self.config.wire.secure_aggregation
        self.server = ServerState(agreement.initial)
        self._opened: tuple[int, ...] | None = None
        """The clients of a sum over the present model that was opened, where no other model came of it."""
        self.stop_requested = False

    def start(self) -> None:
        """Begin: the server's first state, and round 0, the broadcast of the initial model to every client."""
        method = self.agreement.method
        torch.set_num_threads(self.config.threads)
        for key, option in method.replaced_keys.items():
            if (value := lookup(self.config, key)) != lookup(RunConfig(), key):
                self.warn(f"{key} = {value} does nothing under method {method.name}, which steps by {option}")
        began = Clocks.now()
        self.progress.cpu_seconds = 0.0
        with self.folder.writing("metrics.jsonl"):
            self.folder.mend_records(-1)
        self.server = method.start(self.agreement.initial.clone())
        if (broadcast := self._broadcast(self.server)) is not None:
            for _ in range(self.config.data.clients):
                self._crossed("down", broadcast)
            self._keep("down", broadcast)
            self.clients.welcome(broadcast)
        self._finish_round(0, {}, None, began)

    def restore(self) -> None:
        """Go on from the newest checkpoint that is whole; a damaged one is named.

        Raises:
            FedprivError: none is.
            Damaged: a record or a kept payload of an earlier round is not what was written.
        """
        torch.set_num_threads(self.config.threads)
        method = self.agreement.method
        if (broadcast := self._broadcast(method.start(self.agreement.initial.clone()))) is not None:
            self.clients.welcome(broadcast)
        with self.folder.writing("the checkpoints"):
            self.progress, stored, complaints = self.checkpoints.latest()
        for complaint in complaints:
            self.warn(f"{complaint}; going on from the checkpoint of round {self.progress.round}")
        model = {name.removeprefix(_MODEL): tensor for name, tensor in stored.items() if name.startswith(_MODEL)}
        memory = {name.removeprefix(_MEMORY): tensor for name, tensor in stored.items() if name.startswith(_MEMORY)}
        self.server = ServerState(self.agreement.space.pack(model, torch.empty_like(self.agreement.initial)), memory)
        if self.canaries is not None:
            self.canaries.scores = stored[_CANARIES]
        opened = self.progress.record.get("opened")
        self._opened = None if opened is None else tuple(opened)
        with self.folder.writing("metrics.jsonl"):
            self.folder.mend_records(self.progress.round)
        PayloadStore.of(self.folder).verify()

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Run the rounds that are left, yielding the record of each, until the last or until ``stop_requested``."""
        while self.progress.round < self.config.train.rounds and not self.stop_requested:
            yield self.run_round()
            torch.set_num_threads(self.config.threads)  # meanwhile the caller had its own

    def run_round(self) -> dict[str, Any]:
        """Run the next round and commit it."""
        began = Clocks.now()
        round = self.progress.round + 1
        self.profile.begin(round)
        chosen = self.participants(round)
        download = self._download(round)
        arrivals = self._arrivals(round, chosen, download)
        updates = self._updates(round, arrivals)
        if self.config.privacy.level == "client":
            self.ledger.spend(ALL_CLIENTS, self.config.train.participation or 0.0, 1)
        with self.profile("aggregation"):
            outcome = self._merger.next(round, self.server, updates)
        self._go_on(round, outcome, updates.reports)
        missing = self.clients.missing()
        metrics = {"participants": len(chosen), **_numbers(arrivals, updates.reports, updates.summed)}
        if missing:
            metrics["missing"] = len(missing)
        if outcome.left_out is not None:
            metrics[outcome.left_out] = 1
        elif updates.merged:
            metrics |= self.server.report
        metrics |= self.clients.measured()
        if self.is_private:
            metrics["epsilon"] = self.ledger.epsilon
        accuracies, untested = None, dict[int, str]()
        if self._is_scored(round):
            with self.profile("evaluation"):
                scores, accuracies = self.scorer.score(self.server, self.progress.clients, round, outcome.uploads)
                metrics |= scores
                if not math.isfinite(scores.get("test_loss", 0.0)):
                    self.warn(f"round {round}: the model's loss on the test set is not finite, so its accuracies say nothing")
                if untested := dict(self.scorer.untested):
                    metrics["untested"] = len(untested)
        facts: dict[str, Any] = {
            how: [{"client": client, "reason": reason} for client, reason in sorted(left_out.items())]
            for how, left_out in (("refused", arrivals.refused), ("missing", missing), ("untested", untested))
            if left_out
        }
        if diverged := sorted(one for one, report in arrivals.reports.items() if report.diverged):
            facts["diverged"] = diverged
        if untrained := sorted(one for one, report in arrivals.reports.items() if report.untrained):
            facts["untrained"] = untrained
        if updates.summed is not None:
            facts["summed"] = list(updates.summed.clients)
        if self._opened is not None:
            facts["opened"] = list(self._opened)
        merged = {report.client for report in updates.reports} if outcome.left_out is None else set()
        if (lost := sorted(set(chosen) - merged)) or arrivals.refused:  # an answer that is refused may have been a second one
            facts["without_effect"] = lost
        return self._finish_round(round, metrics, accuracies, began, facts)

    def participants(self, round: int) -> list[int]:
        """The clients of a round (1-based), by number."""
        return participants(self.agreement, round)

    def check_trained(self) -> None:
        """Check, after the last round, that the run has trained a model.

        Raises:
            FedprivError: uploads are summed, and no round had a sum that counts.
        """
        if self._secure:
            check_summed(self.folder.records())

    @property
    def ledger(self) -> Ledger:
        """What the run has spent so far."""
        return Ledger(self.config.privacy, self.progress.privacy, self._holders)

    def statement(self) -> dict[str, Any]:
        """The run's privacy statement."""
        rate = self.config.train.participation or 0.0
        return self.ledger.statement(self.config.data.clients, rate, self.randomness, self._apart)

    def _broadcast(self, server: ServerState) -> Sealed | None:
        """Round 0, as every client gets it."""
        draft = self.agreement.method.broadcast(server)
        return None if draft is None else seal(draft)

    def _download(self, round: int) -> Sealed | None:
        """What the clients of a round are sent; ``None``: the method does not communicate."""
        with self.profile("serialisation"):
            draft = self.agreement.method.download(self.server, round)
            if draft is None:
                return None
            download = seal(draft)
            self._keep("down", download)
            return download

    def _arrivals(self, round: int, chosen: Sequence[int], download: Sealed | None) -> Arrivals:
        """Ask the clients of a round, and check what they answer as it comes."""
        with self.profile("serialisation"):
            sent = {} if download is None else download.tensors()
        arrivals = Arrivals(self.agreement, round, chosen, sent, self.samples)
        last = {client: self.progress.clients[client] for client in chosen if client in self.progress.clients}
        accepted: dict[int, list[tuple[Direction, Sealed]]] = {}
        answers = self.profile.each("training", self.clients.train(Instruction(round, chosen, download, last)))
        for number, answer in enumerate(answers, 1):
            if self.on_answer is not None:
                self.on_answer(number, len(chosen))
            messages: list[tuple[Direction, Sealed]] = [] if answer.upload is None else [("up", answer.upload)]
            messages.append(("report", answer.report))
            for direction, sealed in messages:
                self._crossed(direction, sealed)
            try:
                with self.profile("serialisation"):
                    report = arrivals.take(answer)
            except Refused as reason:
                self._refuse(answer.client, round, reason)
                if answer.client not in arrivals.reports:  # such a local update does not count
                    self.clients.forget([(answer.client, round)])
                continue
            if report.diverged:
                on_divergence(self.config, self.warn, report.client, round)
            accepted[answer.client] = messages
        if download is not None:
            for _ in set(chosen) - set(self.clients.not_sent()):
                self._crossed("down", download)
        for client in chosen:  # not as they came, or the kept ones would depend on who is quickest
            for rate, steps in arrivals.charges(client):
                self.ledger.spend(str(client), rate, steps)
            for direction, sealed in accepted.get(client, ()):
                if direction == "report" or not self._secure:
                    self._keep(direction, sealed)
        return arrivals

    def _updates(self, round: int, arrivals: Arrivals) -> LocalUpdates:
        """The local updates that count: of those that fit and did not diverge; where uploads are summed, those in the sum."""
        updates = arrivals.in_order()
        reports = [report for report, _ in updates]
        if not self._secure:
            return LocalUpdates(arrivals.sent, reports, [upload for _, upload in updates if upload is not None])
        summed = self._sum(round, arrivals)
        counted = () if summed is None else summed.clients
        lost = arrivals.keys.keys() - set(counted)
        self.clients.forget(
            (client, round) for client in lost if arrivals.reports[client].keeps
        )  # such a local update does not count
        return LocalUpdates(arrivals.sent, [report for report in reports if report.client in counted], summed=summed)

    def _sum(self, round: int, arrivals: Arrivals) -> Summed | None:
        """The sum of the uploads that clients hold back; ``None``: too few clients are left for a sum."""
        from fedpriv.server.secure_sum import SecureSum

        examples = {client: report.num_examples for client, report in arrivals.reports.items()}
        label = label_of(self.folder.path.name, round)
        sent, crossed = arrivals.sent, self._crossed
        secure = SecureSum(self.agreement, self.clients, label, round, sent, crossed, self.warn, self._opens, self._opened)
        try:
            with self.profile("aggregation"):
                summed = secure.sum(arrivals.keys, examples)
        except Refused as reason:
            self.warn(f"round {round}: there is no sum, so the model stays as it is: {reason}")
            return None
        self._keep("sum", summed.mean)
        return summed

    def _opens(self, clients: tuple[int, ...]) -> None:
        """Take down whose sum over the present model is opened."""
        self._opened = clients

    def _go_on(self, round: int, outcome: Outcome, reports: Sequence[Report]) -> None:
        """Take over a round's outcome; what the clients keep counts where their uploads do."""
        self.server = outcome.state
        keepers = [report.client for report in reports if report.keeps]
        if outcome.left_out is None:
            self._opened = None
            self.progress.clients |= dict.fromkeys(keepers, round)
        else:
            self.clients.forget((client, round) for client in keepers)

    def _refuse(self, client: int, round: int, reason: Refused) -> None:
        """Leave an answer out, or stop the run, as ``train.on_refused`` says; under client-level DP, leave it out."""
        message = f"round {round}: what client {client} sent is refused: {reason}"
        if self.config.train.on_refused == "stop" and self.config.privacy.level != "client":
            raise UploadRefused(f"{message}; train.on_refused=drop goes on without it")
        self.warn(message)

    def _crossed(self, direction: Direction, sealed: Sealed) -> None:
        for tap in self.taps:
            tap(direction, sealed)

    def _is_scored(self, round: int) -> bool:
        last_rounds = round > self.config.train.rounds - self.config.eval.last
        return last_rounds or round % self.config.eval.every == 0

    def _finish_round(
        self,
        round: int,
        metrics: Mapping[str, Any],
        accuracies: list[float | None] | None,
        began: Clocks,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        progress, ended = self.progress, Clocks.now()
        seconds = ended.wall - began.wall
        up, down = self.meter.read()
        progress.round = round
        progress.total_bytes_up += up
        progress.total_bytes_down += down
        progress.seconds += seconds
        if progress.cpu_seconds is not None:
            progress.cpu_seconds += ended.cpu - began.cpu
        traffic = {"bytes_up": up, "bytes_down": down}
        totals = {"total_bytes_up": progress.total_bytes_up, "total_bytes_down": progress.total_bytes_down}
        progress.record = {
            "round": round,
            "time_ms": int(time.time() * 1000),
            "metrics": {**metrics, **traffic, **totals, "seconds": seconds},
            "per_client": {} if accuracies is None else {"accuracy": accuracies},
            **facts,
        }
        with self.profile("checkpoint"), self.folder.writing(f"the checkpoint of round {round}"):
            if (kept := self._keeper.close(round)) is not None:
                progress.record["payloads"] = kept
            self.checkpoints.commit(progress, self._server_tensors())
            self.folder.append(progress.record)
        return progress.record

    def _server_tensors(self) -> dict[str, Tensor]:
        model = self.agreement.space.unpack(self.server.row)
        return {
            **{_MODEL + name: tensor for name, tensor in model.items()},
            **{_MEMORY + name: tensor for name, tensor in self.server.memory.items()},
            **({} if self.canaries is None else {_CANARIES: self.canaries.scores}),
        }


def _numbers(arrivals: Arrivals, reports: Sequence[Report], summed: Summed | None) -> dict[str, Any]:
    """What the answers of a round say, for its record.

    Args:
        reports: of the local updates that count.
    """
    numbers: dict[str, Any] = {"dropped": sum(report.diverged for report in arrivals.reports.values())}
    if untrained := sum(report.untrained for report in arrivals.reports.values()):
        numbers["untrained"] = untrained
    if arrivals.refused:
        numbers["refused"] = len(arrivals.refused)
    losses = [(report.loss, report.num_examples) for report in reports if report.loss is not None]
    if samples := sum(number for _, number in losses):
        numbers["train_loss"] = sum(loss * number for loss, number in losses) / samples
    if summed is not None:
        numbers["summed"] = len(summed.clients)
        if summed.loss is not None:
            numbers["train_loss"] = summed.loss
    return numbers | means(reports)


def on_divergence(config: RunConfig, warn: Callable[[str], None], client: int, round: int) -> None:
    """Stop the run, or go on without what a client trained, as ``train.on_nan`` says; under client-level DP, go on: that the run
    ends would show that the client was there, which no noise covers.

    Raises:
        ClientDiverged: the run stops.
    """
    if config.train.on_nan == "stop" and config.privacy.level != "client":
        raise ClientDiverged(client, round, config.train.lr)
    warn(f"round {round}: client {client} diverged (its loss or its weights are not finite): what it trained is left out")
