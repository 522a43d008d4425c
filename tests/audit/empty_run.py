"""A run in which an audit found nothing, for tests of single findings."""

from __future__ import annotations

from fedpriv.audit.results import AuditedRun, Cost

EMPTY = AuditedRun(
    name="run",
    run_id="0",
    method="fedavg",
    title="FedAvg",
    dataset="digits",
    model="mlp2",
    modalities=("image",),
    seed=0,
    cost=Cost(accuracy=None, worst_tenth=None, chance=None, at_chance=False, bytes_up=0, bytes_down=None, seconds=None),
)
