"""The audit of a record as one run of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from fedpriv.audit.foreign.membership import in_recorded_rounds
from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.foreign.replay import CannotReplay, Difference, compare_with_message
from fedpriv.audit.membership.rounds import InRounds
from fedpriv.audit.progress import Progress
from fedpriv.audit.results import AuditedRun
from fedpriv.audit.run_audit import AuditOptions, audit_record


class AuditedFolder(FolderRecord):
    """A record whose clients' members are inferred."""

    def members(self, seed: int, progress: Progress) -> InRounds:
        return in_recorded_rounds(self, seed, progress)


def audit_recorded(
    folder: Path, model: nn.Module | None, options: AuditOptions, say: Callable[[str], object]
) -> tuple[AuditedRun, Mapping[str, bytes]]:
    """Audit a record; result as of :func:`fedpriv.audit.run_audit.audit_run`.

    Args:
        model: as for :class:`fedpriv.audit.foreign.record.FolderRecord`.

    Raises:
        UsageError, Damaged: see :class:`fedpriv.audit.foreign.record.FolderRecord`.
    """
    record = AuditedFolder(folder, model, options.seed)
    record.verify()
    say("local training, done again as the record declares it")
    record.doubt, sentence = _as_declared(record)
    bare = record.run_facts()
    ended = record.recorded.ended
    conditions = (*bare.conditions, sentence, *([f"the record ends early: {ended}"] if ended else []))
    return audit_record(record, replace(bare, conditions=conditions), options, say)


def _as_declared(record: FolderRecord) -> tuple[str | None, str]:
    """Why failures of attacks are no evidence, if local training is not as it is declared, and a sentence on that; ``None``: they
    can be."""
    round = record.rounds()[0]
    client = min(record.clients(round), key=lambda client: len(record.labels(client)))
    where = f"the message of {record.sender(round, client).named} in round {round}"
    try:
        difference: Difference = compare_with_message(record, round, client)
    except CannotReplay as why:
        return None, f"local training was not done again: {why}"
    if difference.agrees:
        return None, f"local training is as the record declares: done again, it differs from {where} {difference.sentence}"
    return (
        f"local training is not as the record declares: done again, it differs from {where} {difference.sentence}",
        f"local training is not as declared: done again, it differs from {where} {difference.sentence}",
    )
