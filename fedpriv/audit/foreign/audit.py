"""The audit of a record as one run of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.foreign.facts import run_facts
from fedpriv.audit.foreign.membership import in_recorded_rounds
from fedpriv.audit.foreign.nets import GivenNet
from fedpriv.audit.foreign.replay import compare_with_message
from fedpriv.audit.foreign.simulation import CannotReplay, SimulatedRecord
from fedpriv.audit.membership.rounds import InRounds
from fedpriv.audit.progress import Progress
from fedpriv.audit.results.audit import AuditedRun, Part
from fedpriv.audit.run_audit import AuditOptions, audit_record

UNKNOWN_TRANSFORMS = "the record does not say what uploads went through (transforms)"


class AuditedFolder(SimulatedRecord):
    """A record whose clients are simulated only as far as the training that it declares gives their messages."""

    def __init__(self, folder: Path, model: GivenNet = None, seed: int = 0) -> None:
        super().__init__(folder, model, seed)
        self.sentence, self.cannot_simulate, self.doubts = self._as_declared()

    def _as_declared(self) -> tuple[str, Reason | None, tuple[str, ...]]:
        """A sentence on whether local training is as it is declared, why clients cannot be simulated, and doubts."""
        if self.facts.transforms is None:
            return UNKNOWN_TRANSFORMS, Reason("not available", UNKNOWN_TRANSFORMS), (UNKNOWN_TRANSFORMS,)
        round = self.rounds()[0]
        client = min(self.clients(round), key=lambda client: len(self.labels(client)))
        where = f"the message of {self.sender(round, client).named} in round {round}"
        try:
            difference = compare_with_message(self, round, client)
        except CannotReplay as why:
            clients = Reason("not available", f"clients cannot be simulated: {why}")
            return f"local training was not done again: {why}", clients, ()
        differs = f"done again, it differs from {where} {difference.sentence}"
        if difference.agrees:
            return f"local training is as the record declares: {differs}", None, ()
        doubt = f"local training is not as the record declares: {differs}"
        return doubt, Reason("not available", f"clients cannot be simulated: {doubt}"), (doubt,)

    def members(self, options: AuditOptions, rounds: Sequence[int], progress: Progress) -> InRounds | None:
        if self.cannot_simulate is not None:
            return None
        return in_recorded_rounds(self, rounds, options.membership_shadows, options.seed, progress)

    def not_run(self) -> dict[Part, Reason]:
        parts = super().not_run()
        if any(statistic.what == "centers" for statistic in self.statistics()):
            parts["class centres"] = Reason("not available", "the class centres of a record are not attacked")
        return parts


def audit_recorded(
    folder: Path, model: GivenNet, options: AuditOptions, say: Callable[[str], object]
) -> tuple[AuditedRun, Mapping[str, bytes]]:
    """Audit a record; result as of :func:`fedpriv.audit.run_audit.audit_run`.

    Args:
        model: as for :class:`fedpriv.audit.foreign.record.FolderRecord`.

    Raises:
        UsageError, Damaged: see :class:`fedpriv.audit.foreign.record.FolderRecord`.
    """
    say("local training, done again as the record declares it")
    record = AuditedFolder(folder, model, options.seed)
    record.verify()
    bare = run_facts(record)
    ended, cut = record.recorded.ended, record.recorded.cut
    limits = [*_notes(record), *([f"the record ends early: {ended}"] if ended else [])]
    limits += [f"messages whose lines a kill or a full disk cut off are left out: {cut}"] if cut else []
    conditions = (*bare.conditions, record.sentence, *limits)
    return audit_record(record, replace(bare, conditions=conditions), options, say)


def _notes(record: AuditedFolder) -> Iterator[str]:
    """What clients say of their budgets, and why they did not answer."""
    if spent := [line.epsilon for line in record.recorded.lines.values() if line.epsilon is not None]:
        yield f"by their own count, clients have spent an epsilon of up to {max(spent):.3g}"
    if refusals := record.recorded.refusals:
        first = refusals[0]
        where = f"client {first.client} in round {first.round}: {first.refused}"
        yield f"errors in place of answers: {len(refusals)}, the first of {where}"
