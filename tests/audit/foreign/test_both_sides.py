"""The audit of a run and that of its record, with the same messages, conclude the same, outcome by outcome."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import AuditedRun

pytestmark = pytest.mark.slow
APART = 0.06
"""By how much AUCs may differ: both sides draw other shadow models and other local updates of the server."""
CLIENTS, LR, SIZE = 4, 0.1, 4
KEYS: dict[str, Any] = {
    "method.name": "fedavg",
    "model.name": f"{__name__}:Net",
    "data.name": "digits",
    "data.clients": CLIENTS,
    "data.limit": 48,
    "data.test_limit": 60,
    "data.partition.name": "iid",
    "data.augment": "none",
    "train.rounds": 2,
    "train.participation": 1.0,
    "train.lr": LR,
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
    "train.local_epochs": 1,
    "train.batch_size": SIZE,
    "eval.last": 1,
    "wire.keep_payloads": "all",
    "tracking.uri": "none",
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.entry(inputs.flatten(1)).relu())
        return logits


def recorded(run: RunRecord, folder: Path) -> None:
    """A run's own messages and samples as a record."""

    def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace("encoder.", "").replace("head.", "last."): tensor for name, tensor in tensors.items()}

    dataset, data = run.federation.dataset, run.federation.data
    training = {"lr": LR, "local_epochs": 1, "batch_size": SIZE}
    with fedpriv.recording(folder, classes=10, input_shape=(1, 8, 8), net=Net, training=training) as record:
        record.public(dataset.test_images.float() / 255, data.labels("server"))
        for client in range(CLIENTS):
            held = torch.unique(data.indices("train", client))
            record.truth(client, dataset.train_images[held].float() / 255, data.labels("train")[held])
        for round, client in run.messages():
            message = run.message(round, client)
            record.sent(round, client, own(message.received))
            record.answered(round, client, own(message.uploaded), num_examples=message.num_examples)


def exact(run: AuditedRun) -> dict[tuple[Any, ...], Any]:
    """Outcomes that must be equal: they follow from the messages, or from draws that both sides have."""
    outcomes: dict[tuple[Any, ...], Any] = {("answer",): run.concluded.words}
    for target in run.images:
        for image in target.outcomes:
            rates = image.figures and image.figures.success
            outcomes[target.kind, target.round, target.sender.client, image.attack] = image.status, rates
    for labels in run.labels:
        outcomes["classes", labels.round, labels.sender.client] = labels.rule, labels.true, labels.inferred
    outcomes |= {("rule", number): rule for number, rule in enumerate(run.label_rules)}
    for member in run.membership:  # what is near guessing may be judged otherwise by other shadow models
        by_shadows = "LiRA" in member.attack and member.status.was_run
        outcomes["membership", member.round, member.attack] = by_shadows or member.status
    outcomes |= {("control", control.attacker, control.name): control.passed for control in run.membership_controls}
    outcomes |= {("left out", part): reason for part, reason in run.not_run.items()}
    return outcomes


def test_a_run_and_its_record_have_the_same_outcomes(tmp_path: Path) -> None:
    path = fedpriv.train(run_dir=str(tmp_path / "run"), **KEYS).path
    recorded(RunRecord(path), tmp_path / "record")
    options: dict[str, Any] = {"messages": 1, "membership_shadows": 4, "label_shadows": 4, "singles": 4}
    run, record = (fedpriv.audit(folder, **options).runs[0] for folder in (path, tmp_path / "record"))
    theirs, ours = exact(run), exact(record)
    different = [key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)]
    assert not different, {key: (theirs.get(key), ours.get(key)) for key in different}
    assert len(theirs) > 40
    areas = [{it.attack: it.points.auc.value for it in side.membership if it.points is not None} for side in (run, record)]
    assert areas[0].keys() == areas[1].keys() and len(areas[0]) >= 8
    assert all(abs(area - areas[1][attack]) <= APART for attack, area in areas[0].items()), areas
    assert run.shadow_labels is not None and record.shadow_labels is not None
    assert abs(run.shadow_labels.report.f1 - record.shadow_labels.report.f1) <= 2 * APART
