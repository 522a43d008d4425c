"""Class weights: those of scikit-learn, in the loss of torch, in training one client or several at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor
from torch.nn import functional as F

from fedpriv.errors import UsageError
from fedpriv.objectives.cross_entropy import CrossEntropy, balanced_weights, weighted_cross_entropy
from fedpriv.simulation.setup import build
from tests.deploy.apart import agree, play_apart
from tests.marks import quick_first
from tests.simulation.small import config, play, simulation

BALANCED: dict[str, Any] = {"train.class_weights": "balanced"}
FOUR: dict[str, Any] = {"data.partition.name": "iid", "data.clients": 4, "train.participation": 1.0, "train.rounds": 1}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """Four clients of a table of 160 rows, of which one in eight is positive."""
    draw = torch.Generator().manual_seed(0)
    rows = pd.DataFrame(torch.randn(160, 3, generator=draw).numpy(), columns=["a", "b", "c"])
    rows["label"] = ["yes" if row % 8 == 0 else "no" for row in range(160)]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    return {**FOUR, "data.name": str(tmp_path / "rows.csv"), "data.label": "label"}


def test_they_are_those_of_scikit_learn() -> None:
    labels = np.repeat([0, 1, 2], [90, 7, 3])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights([90, 7, 3]).tolist() == pytest.approx(expected.tolist())
    assert balanced_weights([90, 0, 7, 3]).tolist() == pytest.approx([expected[0], 1.0, *expected[1:]]), "a class without samples"


def test_the_loss_is_torch_s() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(3, 8, 5, generator=draw), torch.randint(0, 5, (3, 8), generator=draw)
    weights = torch.rand(5, generator=draw)
    expected = [F.cross_entropy(x, y, weight=weights) for x, y in zip(logits, labels, strict=True)]
    assert torch.allclose(weighted_cross_entropy(logits, labels, weights), torch.stack(expected))
    assert torch.allclose(weighted_cross_entropy(logits[0], labels[0], weights), expected[0])


def trained(folder: Path, method: str, options: dict[str, Any], **more: Any) -> Tensor:
    """The server's model after a round."""
    run = simulation(folder, method, **{**options, **more})
    run.start()
    run.run_round()
    return run.state.row


def test_a_step_is_that_of_the_weighted_loss(tmp_path: Path, table: dict[str, Any]) -> None:
    """One step on all samples, computed here by torch alone."""
    step = {"train.local_steps": 1, "train.batch_size": 200, "train.momentum": 0.0, "train.weight_decay": 0.0}
    run = simulation(tmp_path / "run", "fedavg", **{**table, **step, **BALANCED, "method.weights": "uniform"})
    federation, changes = run.federation, list[Tensor]()
    labels = torch.cat([federation.data.train(client).labels for client in range(4)]).numpy()
    weights = torch.from_numpy(compute_class_weight("balanced", classes=np.arange(2), y=labels)).float()
    net, space = federation.resident.net, federation.resident.space
    for client in range(4):
        split = federation.data.train(client)
        federation.resident.row.copy_(federation.initial)
        parameters = dict(net.named_parameters())
        loss = F.cross_entropy(net(split.inputs).logits, split.labels, weight=weights)
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        changes.append(space.pack(gradients, torch.zeros_like(federation.initial)))
    run.start()
    run.run_round()
    expected = federation.initial - 0.05 * torch.stack(changes).mean(0)
    assert torch.allclose(run.state.row, expected, atol=1e-6) and not torch.allclose(run.state.row, federation.initial, atol=1e-4)


@pytest.mark.parametrize("method", quick_first(["fedavg", "moon", "mpfedcon", "feddual", "scaffold", "ditto"]))
def test_clients_that_train_together_have_them_too(tmp_path: Path, table: dict[str, Any], method: str) -> None:
    in_groups = {"executor.name": "vectorized", "executor.group_size": 2}
    alone = trained(tmp_path / "alone", method, table, **BALANCED)
    assert torch.allclose(alone, trained(tmp_path / "together", method, table, **BALANCED, **in_groups), atol=1e-5)
    assert not torch.allclose(alone, trained(tmp_path / "plain", method, table), atol=1e-3)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("l-dawa", {"model.name": "mlp2"}, "has no cross-entropy"),
    ("fedavg", {"train.accumulate": 2}, "no mean over parts"),
    ("fedavg", {"privacy.level": "sample", "privacy.noise": 1.0}, "each sample alone"),
    ("fedavg", {"privacy.level": "client", "privacy.noise": 1.0}, "no epsilon covers"),
]


@pytest.mark.parametrize(("method", "options", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_cannot_weigh_classes_says_so(method: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=rf"train.class_weights balanced: .*{why}"):
        build(config(method, **{**FOUR, **BALANCED, **options}))


def test_a_deployment_counts_the_classes_before_its_first_round(tmp_path: Path) -> None:
    asked = {**FOUR, **BALANCED, "train.rounds": 1}
    play(tmp_path / "whole", "fedavg", **asked)
    agree(play_apart(tmp_path / "apart", "fedavg", **asked), tmp_path / "whole")


def test_an_objective_with_a_loss_of_its_own_does_not_inherit_them() -> None:
    class Own(CrossEntropy):
        name = "own"

        def loss(self, step: Any) -> Tensor:
            return F.cross_entropy(step.outputs.logits, step.labels)

    context = build(config("fedavg", **{**FOUR, **BALANCED})).method.context
    CrossEntropy(None, context)
    with pytest.raises(UsageError, match="objective own has no cross-entropy"):
        Own(None, context)
