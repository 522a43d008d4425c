"""What the record of a round says: its metrics, the clients' accuracies, and which local updates were left out, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpriv.server.answers.arrivals import Arrivals
from fedpriv.server.answers.reported import means
from fedpriv.server.clients import Evaluation
from fedpriv.server.next_state import LocalUpdates, Outcome


@dataclass
class RoundRecord:
    """The record of a round as it is put together; ``fedpriv/storage/records.py`` describes its keys.

    Attributes:
        metrics: numbers by name. The server's own names also stand in ``_RESERVED`` of
            ``fedpriv/server/answers/reported.py``, so that clients cannot report them.
        per_client: the clients' scores, as in :class:`Evaluation`; empty: clients were not tested.
        clients: lists of clients by what became of them.
    """

    round: int
    metrics: dict[str, Any] = field(default_factory=dict)
    per_client: Mapping[str, list[float | None]] = field(default_factory=dict)
    clients: dict[str, Any] = field(default_factory=dict)

    def add_training(
        self, arrivals: Arrivals, updates: LocalUpdates, outcome: Outcome, missing: Mapping[int, str], lr: float | None = None
    ) -> None:
        """Add the counts of answers, the means of what clients report, and the metrics of the merge.

        Args:
            lr: the learning rate of the round, if it changes from round to round.
            missing: clients that gave no answer, with reasons.
        """
        metrics = self.metrics
        metrics["participants"] = len(arrivals.asked)
        if lr is not None:
            metrics["lr"] = lr
        metrics["dropped"] = sum(report.diverged for report in arrivals.reports.values())
        if untrained := sum(report.untrained for report in arrivals.reports.values()):
            metrics["untrained"] = untrained
        if arrivals.refused:
            metrics["refused"] = len(arrivals.refused)
        losses = [(report.loss, report.num_examples) for report in updates.reports if report.loss is not None]
        if samples := sum(number for _, number in losses):
            metrics["train_loss"] = sum(loss * number for loss, number in losses) / samples
        if updates.summed is not None:
            metrics["summed"] = len(updates.summed.clients)
            if updates.summed.loss is not None:
                metrics["train_loss"] = updates.summed.loss
        metrics |= means(updates.reports)
        if missing:
            metrics["missing"] = len(missing)
            self.clients["missing"] = _with_reasons(missing)
        if outcome.left_out is not None:
            metrics[outcome.left_out] = 1
        elif updates.merged:
            metrics |= outcome.state.report

    def add_scores(self, evaluation: Evaluation, untested: Mapping[int, str], warn: Callable[[str], None]) -> None:
        """Add the results of the evaluation, and warn where the test loss is not finite.

        Args:
            untested: clients with test data whose scores are not known, with reasons.
        """
        self.metrics |= evaluation.metrics
        self.per_client = evaluation.per_client or {}
        if not math.isfinite(evaluation.metrics.get("test_loss", 0.0)):
            warn(f"round {self.round}: the model's loss on the test set is not finite, so its accuracies say nothing")
        if untested:
            self.metrics["untested"] = len(untested)
            self.clients["untested"] = _with_reasons(untested)

    def add_clients(
        self, arrivals: Arrivals, updates: LocalUpdates, outcome: Outcome, opened_sum: tuple[int, ...] | None
    ) -> None:
        """Add the lists of clients whose local updates were left out, and of those in secure sums.

        Args:
            opened_sum: as ``opened_before`` of :class:`fedpriv.server.secure_sum.SecureSum`.
        """
        reports, clients = arrivals.reports.items(), self.clients
        if arrivals.refused:
            clients["refused"] = _with_reasons(arrivals.refused)
        if diverged := sorted(client for client, report in reports if report.diverged):
            clients["diverged"] = diverged
        if untrained := sorted(client for client, report in reports if report.untrained):
            clients["untrained"] = untrained
        if updates.summed is not None:
            clients["summed"] = list(updates.summed.clients)
        if opened_sum is not None:
            clients["opened"] = list(opened_sum)
        merged = {report.client for report in updates.reports} if outcome.left_out is None else set()
        # Write an empty list too: a refused client is not always without effect, as its first answer may have been merged.
        if (without_effect := sorted(set(arrivals.asked) - merged)) or arrivals.refused:
            clients["without_effect"] = without_effect


def _with_reasons(clients: Mapping[int, str]) -> list[dict[str, Any]]:
    return [{"client": client, "reason": reason} for client, reason in sorted(clients.items())]
