"""The round loop. There is no other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.turn import ClientDiverged
from fedpriv.config import RunConfig, lookup
from fedpriv.evaluation.probe_during_run import Prober
from fedpriv.methods.base import Private, ServerState
from fedpriv.privacy.ledger import ALL_CLIENTS, Ledger
from fedpriv.seeding import generator
from fedpriv.server.checkpoint import Checkpoints, Progress
from fedpriv.server.merging import merge
from fedpriv.server.payloads import PayloadKeeper
from fedpriv.server.run_folder import RunFolder
from fedpriv.server.sampling import participants
from fedpriv.simulation.arrivals import sift
from fedpriv.simulation.executors.build import executor_of
from fedpriv.simulation.executors.sequential import TurnResult
from fedpriv.simulation.scoring import Scorer
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.spans import UNTIMED, Spans
from fedpriv.wire import ByteMeter, seal

_MODEL, _MEMORY = "model.", "memory."


class Simulation:
    """One run: rounds, each followed by its evaluation, its checkpoint and its record.

    Args:
        warn: called with warnings of one line.
        profile: times the categories of work.
    """

    def __init__(self, federation: Federation, folder: RunFolder, warn: Callable[[str], None], profile: Spans = UNTIMED) -> None:
        self.federation, self.folder, self.warn, self.profile = federation, folder, warn, profile
        self.config: RunConfig = federation.config
        self.meter = ByteMeter()
        federation.wire.transforms = tuple(profile.timed("defences", transform) for transform in federation.wire.transforms)
        federation.wire.taps += [self.meter, profile.timed("checkpoint", PayloadKeeper(folder, self.config))]
        self.executor = executor_of(federation, lambda client, rate, steps: self._spend(str(client), rate, steps), warn)
        self.scorer = Scorer(federation, self._on_divergence)
        if federation.augment is not None:
            federation.augment = profile.timed("data", federation.augment)
        self.executor.profile = profile
        self.prober = Prober(federation.resident, federation.dataset, self.config) if self.config.eval.probe != "none" else None
        self.checkpoints = Checkpoints(folder.checkpoints, self.config.fingerprint())
        self.progress = Progress()
        self.private = self.config.privacy.level != "none"
        self._holders = federation.data.partition.holders() if self.config.privacy.level == "sample" else []
        self.server = ServerState(federation.initial)
        self.stop_requested = False

    def start(self) -> None:
        """Begin: the server's first state, and round 0, the broadcast of the initial model to every client."""
        method = self.federation.method
        torch.set_num_threads(self.config.threads)
        for key, option in method.instead.items():
            if (value := lookup(self.config, key)) != lookup(RunConfig(), key):
                self.warn(f"{key} = {value} does nothing under method {method.name}, which steps by {option}")
        self.server = method.start(self.federation.initial.clone())
        began = time.perf_counter()
        broadcast = method.broadcast(self.server)
        if broadcast is not None:
            sealed = seal(broadcast)
            for _ in range(self.config.data.clients):
                self.federation.wire.download(sealed)
        self._finish_round(0, {}, None, time.perf_counter() - began)

    def restore(self) -> None:
        """Go on from the newest checkpoint that is whole; a damaged one is named."""
        torch.set_num_threads(self.config.threads)
        self.progress, stored, complaints = self.checkpoints.latest()
        for complaint in complaints:
            self.warn(f"{complaint}; going on from the checkpoint of round {self.progress.round}")
        model = {name.removeprefix(_MODEL): tensor for name, tensor in stored.items() if name.startswith(_MODEL)}
        memory = {name.removeprefix(_MEMORY): tensor for name, tensor in stored.items() if name.startswith(_MEMORY)}
        row = self.federation.resident.space.pack(model, torch.empty_like(self.federation.initial))
        self.server = ServerState(row, memory)
        with self.folder.writing("metrics.jsonl"):
            self.folder.mend()
            self.folder.append(self.progress.record)

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Play the rounds that are left, yielding the record of each, until the last or until ``stop_requested``."""
        while self.progress.round < self.config.train.rounds and not self.stop_requested:
            yield self.play_round()

    def play_round(self) -> dict[str, Any]:
        """Play the next round and commit it."""
        began = time.perf_counter()
        profile, round, method = self.profile, self.progress.round + 1, self.federation.method
        profile.begin(round)
        with profile("serialisation"):
            draft = method.download(self.server, round)
            download = None if draft is None else seal(draft)
            sent = {} if download is None else download.tensors()
        ended: dict[int, TurnResult] = {}
        dropped: list[int] = []

        def drop(error: ClientDiverged) -> None:
            self._on_divergence(error)
            dropped.append(error.client)

        chosen = self._participants(round)
        for result in profile.each("training", self.executor.run(round, chosen, download, self._stored, drop)):
            if result.kept:
                with profile("checkpoint"), self.folder.writing(f"the checkpoint of round {round}"):
                    self.checkpoints.keep(result.client, round, result.kept)
                self.progress.clients[result.client] = round
            ended[result.client] = replace(result, kept={})
        results = [ended[client] for client in chosen if client in ended]  # sums do not depend on who ended first
        with profile("serialisation"):
            arrivals = sift(results, sent, method)
        for client, reason in arrivals.rejected.items():
            self.warn(f"round {round}: the upload of client {client} is left out: {reason}")
        uploads = arrivals.uploads
        reported: dict[str, list[float]] = {}
        for result in arrivals.results:
            for name, value in result.reported.items():
                reported.setdefault(name, []).append(value)
        with profile("aggregation"):
            if (noisy_mean := self.federation.noisy_mean) is not None:
                self._spend(ALL_CLIENTS, self.config.train.participation or 0.0, 1)
                self.server = noisy_mean(self.server, uploads, sent, generator(self.config.seed, round, "dp noise"))
            elif uploads:
                self.server = merge(method, self.server, uploads)
        metrics: dict[str, Any] = {"participants": len(chosen), "dropped": len(dropped)}
        if arrivals.rejected:
            metrics["rejected"] = len(arrivals.rejected)
        if uploads:
            metrics |= self.server.report
        losses = [(result.mean_loss, result.num_examples) for result in arrivals.results if math.isfinite(result.mean_loss)]
        if samples := sum(number for _, number in losses):
            metrics["train_loss"] = sum(loss * number for loss, number in losses) / samples
        metrics |= {name: fmean(values) for name, values in reported.items()}
        if (padding := self.executor.sample_count.take().padding) is not None:
            metrics["padding"] = padding
        if self.private:
            metrics["epsilon"] = self.ledger.epsilon
        accuracies = None
        if self._is_scored(round):
            with profile("evaluation"):
                if method.objective.labels:
                    scores, accuracies = self.scorer.score(self.server, self._private, round)
                    metrics |= scores
                if self.prober is not None:
                    metrics |= self.prober(self.server.row)
        return self._finish_round(round, metrics, accuracies, time.perf_counter() - began, arrivals.rejected)

    def trained_clients(self) -> set[int]:
        """The clients that had a turn so far (re-derived: who takes part is a function of the config)."""
        return {client for round in range(1, self.progress.round + 1) for client in self._participants(round)}

    @property
    def ledger(self) -> Ledger:
        """What the run has spent so far."""
        return Ledger(self.config.privacy, self.progress.privacy, self._holders)

    def statement(self) -> dict[str, Any]:
        """The run's privacy statement."""
        return self.ledger.statement(self.config.data.clients, self.config.train.participation or 0.0)

    def _spend(self, account: str, rate: float, steps: int) -> None:
        self.ledger.spend(account, rate, steps)

    def _on_divergence(self, error: ClientDiverged) -> None:
        if self.config.train.on_nan == "stop":
            raise error
        self.warn(
            f"round {self.progress.round + 1}: client {error.client} diverged (its loss or its weights are not finite): "
            "what it trained is left out"
        )

    def _participants(self, round: int) -> list[int]:
        return participants(self.config, self.federation.method, self.federation.data.nonempty, round)

    def _is_scored(self, round: int) -> bool:
        last_rounds = round > self.config.train.rounds - self.config.eval.last
        return last_rounds or round % self.config.eval.every == 0

    def _stored(self, client: int) -> Private | None:
        with self.profile("checkpoint"):
            stored = self.checkpoints.private(self.progress, client)
            device = self.federation.resident.device
            return None if stored is None else {name: tensor.to(device) for name, tensor in stored.items()}

    def _private(self, client: int) -> Private:
        stored = self._stored(client)
        return self.federation.method.first_private(client, self.federation.initial) if stored is None else stored

    def _finish_round(
        self,
        round: int,
        metrics: Mapping[str, Any],
        accuracies: list[float | None] | None,
        seconds: float,
        rejected: Mapping[int, str] | None = None,
    ) -> dict[str, Any]:
        progress = self.progress
        up, down = self.meter.read()
        progress.round = round
        progress.total_bytes_up += up
        progress.total_bytes_down += down
        progress.seconds += seconds
        traffic = {"bytes_up": up, "bytes_down": down}
        totals = {"total_bytes_up": progress.total_bytes_up, "total_bytes_down": progress.total_bytes_down}
        progress.record = {
            "round": round,
            "time_ms": int(time.time() * 1000),
            "metrics": {**metrics, **traffic, **totals, "seconds": seconds},
            "per_client": {} if accuracies is None else {"accuracy": accuracies},
        }
        if rejected:
            progress.record["rejected"] = [{"client": client, "reason": reason} for client, reason in rejected.items()]
        with self.profile("checkpoint"), self.folder.writing(f"the checkpoint of round {round}"):
            self.checkpoints.commit(progress, self._server_tensors())
            self.folder.append(progress.record)
        return progress.record

    def _server_tensors(self) -> dict[str, Tensor]:
        model = self.federation.resident.space.unpack(self.server.row)
        memory = self.server.memory
        return {
            **{_MODEL + name: tensor for name, tensor in model.items()},
            **{_MEMORY + name: tensor for name, tensor in memory.items()},
        }
