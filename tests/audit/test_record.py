"""Audits read a record, whether of a run or not."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import nn
from torch.nn import functional as F

from fedpriv.attacks.api.tensors import read_message
from fedpriv.attacks.api.user_net import cut
from fedpriv.attacks.lab.images import default_images
from fedpriv.audit.record.base import SIMULATED, Record, Truth
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.update import UpdateRecord
from fedpriv.audit.run_audit import AuditOptions, audit_record


class TwoRounds(UpdateRecord):
    """A training loop that sent the same gradient twice."""

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        return [(number, 0) for number in (1, 2) if round in (None, number)]


def test_a_training_loop_of_several_rounds_is_audited_without_a_federation() -> None:
    torch.manual_seed(0)
    net, truth = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), Truth(*default_images(2, side=8))
    gradient = torch.autograd.grad(F.cross_entropy(net(truth.images), truth.labels), list(net.parameters()))
    record = TwoRounds(
        name="loop", seed=0, model=net, net=cut(net, (3, 8, 8)), sent=read_message(net, gradient), besides={}, payload=None,
        data=truth, schedule=None,
    )  # fmt: skip
    run, _ = audit_record(record, record.facts(), AuditOptions(budget=1e-6), lambda text: None)
    assert [target.round for target in run.images] == [label.round for label in run.labels] == [1, 2]
    assert run.labels_over_rounds and set(SIMULATED) <= run.not_run.keys()


def test_only_a_record_that_cannot_simulate_clients_leaves_parts_out() -> None:
    assert Record().not_run().keys() == set(SIMULATED)
    assert RunRecord.cannot_simulate is None and "federation" not in {field.name for field in fields(UpdateRecord)}
