"""What a record says without attacks."""

from __future__ import annotations

from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.record.traffic import IN_TRANSIT, has_batch_norm, net_conditions
from fedpriv.audit.results import AuditedRun, Cost, RoundTraffic, Wire


def run_facts(record: FolderRecord) -> AuditedRun:
    """A record as a run of the page, without attacks."""
    facts, lines = record.facts, record.recorded.lines.values()
    rounds = sorted({line.round for line in lines})
    traffic = [RoundTraffic(round, _bytes(record, round, "up"), _bytes(record, round, "down")) for round in rounds]
    where = f" of {facts.framework}" if facts.framework else ""
    knows = [
        "has every recorded message",
        "knows the architecture and the schedule of local training that the record declares",
    ]
    if any(line.num_examples is not None for line in lines):
        knows.append("receives each client's number of training samples")
    first = record.update(record.message(*record.messages()[0]))
    return AuditedRun(
        source="record",
        name=facts.name,
        run_id=facts.name,
        run_dir=str(record.recorded.folder),
        method=f"recorded federation{where}",
        title=f"A federation{where}, as it was recorded",
        dataset=f"{facts.samples} of {'x'.join(map(str, facts.input_shape))}",
        model=facts.net or type(record.model).__name__,
        modalities=record.modalities,
        seed=record.seed,
        clients=len(record.recorded.clients),
        participants=max(len([m for m in record.recorded.answered() if m[0] == round]) for round in rounds),
        rounds=len(rounds),
        defence=tuple(str(transform) for transform in record.transforms),
        cost=Cost(bytes_up=sum(it.bytes_up for it in traffic), bytes_down=sum(it.bytes_down for it in traffic)),
        wire=Wire(tuple(first.tensor_infos()), rounds=tuple(traffic)),
        server_knows=tuple(knows),
        outsider_knows=IN_TRANSIT,
        conditions=net_conditions(record.net.split),
        batch_norm=has_batch_norm(record.net.split),
    )


def _bytes(record: FolderRecord, round: int, direction: str) -> int:
    lines = [line for line in record.recorded.lines.values() if (line.round, line.direction) == (round, direction)]
    return sum(line.nbytes or (record.recorded.folder / line.file).stat().st_size for line in lines)
