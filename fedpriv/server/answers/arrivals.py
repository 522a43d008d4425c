"""The answers that arrive at the server in a round. Each is checked, and refused if its client was asked for something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.privacy.steps import charge
from fedpriv.server.answers.reported import check_names
from fedpriv.wire.coding import Upload
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Charge, Report

if TYPE_CHECKING:
    from fedpriv.secure.protocol import PublicKeys


@dataclass(frozen=True)
class Arrivals:
    """A round's answers.

    Attributes:
        asked: the clients that the server asked, in the order in which their uploads are merged.
        sent: what the asked clients were sent, by name.
        samples: client -> the number of training samples that it declared. It weights the upload, and under sample-level DP it
            determines the number of steps.
        reports: the reports of the clients whose answers were accepted, also of clients that diverged.
        uploads: the uploads of the same clients, decoded.
        keys: with secure aggregation, the public keys that clients send in place of uploads.
        refused: client -> why its answer was refused; also for a second answer after an accepted one.
    """

    agreement: Agreement
    round: int
    asked: Sequence[int]
    sent: Mapping[str, Tensor]
    samples: Mapping[int, int] = field(default_factory=dict)
    reports: dict[int, Report] = field(default_factory=dict)
    uploads: dict[int, Upload] = field(default_factory=dict)
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def take(self, answer: Answer) -> Report:
        """Check an answer, and store its report and its upload.

        Raises:
            Refused: the answer is not what its client was asked for; only the reason is stored.
        """
        try:
            report = self._report(answer)
            self._check_upload(answer, report)
        except Refused as reason:
            self.refused.setdefault(answer.client, str(reason))
            raise
        self.reports[answer.client] = report
        return report

    def in_order(self) -> list[tuple[Report, Upload | None]]:
        """Report and upload of the clients that trained and did not diverge, in the order of ``asked``, as sums depend on it."""
        reports = [self.reports[client] for client in self.asked if client in self.reports]
        return [(report, self.uploads.get(report.client)) for report in reports if not (report.diverged or report.untrained)]

    def charges(self, client: int) -> Sequence[Charge]:
        """The steps of DP-SGD that the ledger books for a client that was asked.

        They are the steps that the client reports. If no answer was accepted, they are all steps of a full local update, because
        its upload may have been seen.
        """
        if client in self.reports:
            return self.reports[client].spent
        if self.agreement.config.privacy.level != "sample":
            return ()
        return self._due(self.samples[client])

    def _due(self, samples: int) -> list[Charge]:
        """The steps of DP-SGD of a full local update on this number of samples."""
        size = self.agreement.config.train.batch_size
        return [charge(phase, samples, size) for phase in self.agreement.method.phases(self.round)]

    def _report(self, answer: Answer) -> Report:
        if answer.client not in self.asked:
            raise Refused("it was not asked in this round")
        if answer.client in self.reports:
            raise Refused("it has answered before")
        report, most = Report.of(answer.report), self.agreement.declared.most_samples
        if (report.round, report.client) != (self.round, answer.client):
            raise Refused(f"its report is of client {report.client} in round {report.round}")
        if not 1 <= report.num_examples <= most:
            raise Refused(f"it reports {report.num_examples} samples, not 1 to {most}")
        if report.num_examples != (known := self.samples.get(answer.client, report.num_examples)):
            raise Refused(f"it reports {report.num_examples} samples and declared {known}")
        check_names(report.numbers)
        self._check_spent(report)
        return report

    def _check_spent(self, report: Report) -> None:
        """Refuse a report whose DP-SGD steps are not those of the client's local update: the ledger books what is reported."""
        config, number, spent = self.agreement.config, report.num_examples, list(report.spent)
        if config.privacy.level != "sample":
            if spent:
                raise Refused("it reports DP-SGD steps, but the run has no sample-level DP")
            return
        due = self._due(number)
        # A client that diverged stopped partway, so it reports only its first phases.
        if spent != (due[: len(spent)] if report.diverged else due):
            raise Refused(f"its DP-SGD steps are not those of a local update on {number} samples")

    def _check_upload(self, answer: Answer, report: Report) -> None:
        agreement, upload = self.agreement, answer.upload
        reasons = {
            "it diverged": report.diverged,
            "it took no step": report.untrained,
            "the method sends nothing": not agreement.method.shared_names,
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), None):
            if upload is not None:
                raise Refused(f"it uploads, but {reason}")
            return
        if upload is None:
            raise Refused("it uploads nothing")
        if agreement.config.wire.secure_aggregation:
            from fedpriv.secure.messages import own_key

            self.keys[answer.client] = own_key(upload, self.round, answer.client)
            return
        if upload.num_examples not in (None, report.num_examples):
            raise Refused(f"it uploads {upload.num_examples} samples and reports {report.num_examples}")
        self.uploads[answer.client] = agreement.expected(self.round, answer.client, self.sent).check(upload)
