"""What a record says without attacks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.record.traffic import IN_TRANSIT, has_batch_norm, net_conditions
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.epsilon import Epsilon
from fedpriv.audit.results.wire import RoundTraffic, Wire
from fedpriv.recorder.layout import Facts


def run_facts(record: FolderRecord) -> AuditedRun:
    """A record as a run of the page, without attacks."""
    facts, lines = record.facts, record.recorded.lines.values()
    answers = Counter(round for round, name in record.recorded.answered() for _ in record.recorded.behind(name))
    rounds, sizes = sorted({line.round for line in lines}), Counter[tuple[int, str]]()
    for line in lines:
        sizes[line.round, line.direction] += line.nbytes or (record.recorded.folder / line.file).stat().st_size
    traffic = [RoundTraffic(round, sizes[round, "up"], sizes[round, "down"]) for round in rounds]
    where = f" of {facts.framework}" if facts.framework else ""
    clients = {name for line in lines if line.direction == "up" for name in line.members or (line.client,)}
    knows = [
        "learns the sum of a round's answers, and no single one" if record.summed else "has every recorded message",
        "knows the architecture and the schedule of local training that the record declares",
    ]
    if any(line.num_examples is not None for line in lines):
        knows.append("receives each client's number of training samples")
    if statistics := record.statistics():
        knows.append(f"receives statistics besides weights: {', '.join(statistic.what for statistic in statistics)}")
    if record.transforms:
        knows.append(f"knows the transforms of an upload: {', '.join(map(str, record.transforms))}")
    first = record.update(record.message(*record.messages()[0]))
    return AuditedRun(
        source="record",
        name=facts.name,
        run_id=facts.name,
        run_dir=str(record.recorded.folder),
        method=f"recorded federation{where}",
        title=f"A federation{where}, as it was recorded",
        dataset=_dataset(facts),
        model=facts.net or type(record.model).__name__,
        modalities=record.modalities,
        seed=record.seed,
        clients=len(clients),
        participants=max(answers.values()),
        rounds=len(rounds),
        defence=("not known",) if facts.transforms is None else tuple(str(transform) for transform in record.transforms),
        cost=Cost(bytes_up=sum(it.bytes_up for it in traffic), bytes_down=sum(it.bytes_down for it in traffic)),
        wire=Wire(tuple(first.tensor_infos()), rounds=tuple(traffic)),
        server_knows=tuple(knows),
        outsider_knows=IN_TRANSIT,
        epsilon=_epsilon(record),
        config_yaml=json.dumps(asdict(facts), indent=1),
        conditions=net_conditions(record.net.split),
        batch_norm=has_batch_norm(record.net.split),
    )


def _dataset(facts: Facts) -> str:
    if facts.samples == "images":
        return f"images of {'x'.join(map(str, facts.input_shape))}"
    return f"rows of {len(facts.columns)} columns" if facts.columns else f"texts of up to {facts.input_shape[0]} tokens"


def _epsilon(record: FolderRecord) -> Epsilon | None:
    """What clients state that they spent; ``None``: they state nothing."""
    stated = [line for line in record.recorded.lines.values() if line.epsilon is not None]
    most = max(stated, key=lambda line: line.epsilon or 0.0, default=None)
    if most is None or most.epsilon is None:
        return None
    return Epsilon(
        upper=most.epsilon,
        delta=record.delta,
        level="client",
        accountant="clients' own",
        by_attack=None,
        canaries=None,
        statement=("not checked: a record has no accountant's history", f"the largest is client {most.client}'s"),
    )
