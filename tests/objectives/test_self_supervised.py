"""SimCLR and Barlow Twins: losses against their definitions and lightly, and what such a client trains and sends."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.objectives.barlow_twins import batch_norm, cross_correlation_loss, unbiased
from fedpriv.objectives.simclr import nt_xent
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed
from tests.oracles import self_supervised as oracle

Simulate = Callable[..., Simulation]


def views(size: int = 6, width: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    drawn = torch.randn(2, size, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn[0], drawn[0] + 0.5 * drawn[1]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_nt_xent_is_its_definition(symmetric: bool, include_self: bool, temperature: float) -> None:
    a, b = views()
    expected = oracle.nt_xent(a.tolist(), b.tolist(), temperature, symmetric, include_self)
    assert float(nt_xent(a, b, temperature, symmetric, include_self)) == pytest.approx(expected, rel=1e-12)


def test_nt_xent_with_the_anchor_itself_stays_above_log_two() -> None:
    """The views agree and all other samples are far away: the authors' loss then has its floor of log 2."""
    a = torch.eye(5, dtype=torch.float64)
    assert float(nt_xent(a, a, 0.07, symmetric=False, include_self=True)) == pytest.approx(math.log(2), abs=1e-5)
    assert float(nt_xent(a, a, 0.07)) < 1e-5


def test_nt_xent_golden() -> None:
    """Two images with orthogonal embeddings, by hand: each anchor has e^(1/t) for its other view and twice e^0."""
    a = torch.eye(2, dtype=torch.float64)
    assert float(nt_xent(a, 3 * a, 0.5)) == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-12)
    both = math.log(2 + 2 * math.exp(-2))
    assert float(nt_xent(a, 3 * a, 0.5, symmetric=False, include_self=True)) == pytest.approx(both, rel=1e-12)


def test_nt_xent_by_the_book_is_lightlys() -> None:
    from lightly.loss import NTXentLoss

    a, b = (view.requires_grad_() for view in views(9, 5))
    ours, theirs = nt_xent(a, b, 0.07), NTXentLoss(0.07)(a, b)
    assert torch.equal(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours, (a, b)), torch.autograd.grad(theirs, (a, b)), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("weight", [0.0, 5e-3, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_barlow_is_its_definition(weight: float, epsilon: float) -> None:
    a, b = views(7, 3)
    expected = oracle.barlow(a.tolist(), b.tolist(), weight, epsilon)
    assert float(cross_correlation_loss(a, b, weight, partial(unbiased, epsilon=epsilon))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weight", [0.0, 5e-3, 1.0])
def test_barlow_by_the_book_is_lightlys(weight: float) -> None:
    from lightly.loss import BarlowTwinsLoss

    a, b = (view.requires_grad_() for view in views(9, 5))
    ours, theirs = cross_correlation_loss(a, b, weight, batch_norm), BarlowTwinsLoss(weight)(a, b)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)  # they sum in another order
    for mine, other in zip(torch.autograd.grad(ours, (a, b)), torch.autograd.grad(theirs, (a, b)), strict=True):
        assert torch.equal(mine, other)


def test_the_two_standardisations_differ_by_the_deviation_alone() -> None:
    """The biased deviation gives n / (n - 1) times the correlations; at this scale neither epsilon counts."""
    a, b = (1e4 * view for view in views(40, 3))
    ours, theirs = (float(cross_correlation_loss(a, b, 5e-3, standardised)) for standardised in (unbiased, batch_norm))
    assert ours != pytest.approx(theirs, rel=1e-3)
    torch.testing.assert_close(batch_norm(a), unbiased(a) * math.sqrt(40 / 39), rtol=1e-9, atol=0)


def test_barlow_survives_a_dimension_that_is_constant() -> None:
    a, b = (view.clone() for view in views())
    a[:, 1] = 0.0
    a.requires_grad_()
    loss = cross_correlation_loss(a, b, 5e-3)
    assert torch.isfinite(loss) and torch.isfinite(torch.autograd.grad(loss, a)[0]).all()


SSL = {"train.rounds": 1, "train.batch_size": 32, "train.min_batch": 1}


@pytest.mark.parametrize("name", ["simclr", "barlow-twins"])
def test_the_head_is_neither_trained_nor_sent_nor_kept(simulate: Simulate, name: str) -> None:
    simulation, sent = simulate("fedavg", play=False, **{"objective.name": name, **SSL}), list[Sealed]()
    fed = simulation.federation
    simulation.taps.append(lambda way, sealed: sent.append(sealed) if way != "report" else None)
    simulation.run_round()
    space = fed.resident.space
    learnt = set(space.select({"encoder", "projector"}))
    assert len(sent) == 6 and all(set(upload.schema) == learnt for upload in sent)
    for entry in space.entries:
        same = torch.equal(space.view(simulation.state.row, entry.name), space.view(fed.initial, entry.name))
        assert same == (entry.role == "head"), entry.name
    assert simulation.progress.clients == {}, "a client keeps nothing"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("simclr", {"symmetric": False}),
        ("simclr", {"include_self": True}),
        ("simclr", {"temperature": 0.5}),
        ("barlow-twins", {"standardise": "batch_norm"}),
        ("barlow-twins", {"off_diagonal": 1.0}),
    ],
)
def test_options_reach_the_loss(simulate: Simulate, name: str, options: dict[str, Any]) -> None:
    losses = []
    for chosen in ({}, options):
        simulation = simulate("fedavg", **{"objective.name": name, **SSL, **{f"objective.{k}": v for k, v in chosen.items()}})
        losses.append(simulation.folder.records()[-1]["metrics"]["train_loss"])
    assert all(math.isfinite(loss) for loss in losses) and losses[0] != losses[1]


def test_views_are_suggested_two_and_different(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"objective.name": "simclr", **SSL})
    assert simulation.config.data.augment == "simclr"
    seen: list[Tensor] = []
    objective = simulation.federation.method.objective
    loss = objective.loss

    def look(step: Any) -> Tensor:
        seen.extend(view.features.detach() for view in step.views)
        return loss(step)

    objective.loss = look  # type: ignore[method-assign]
    simulation.run_round()
    assert len(seen) % 2 == 0 and all(not torch.equal(a, b) for a, b in zip(seen[::2], seen[1::2], strict=True))


def test_simclr_loss_is_lower_without_augmentation(simulate: Simulate) -> None:
    """Views of one image are then the same, so each anchor's other view scores 1: the loss is what the others leave."""
    simulation = simulate("fedavg", **{"objective.name": "simclr", "data.augment": "none", **SSL})
    augmented = simulate("fedavg", **{"objective.name": "simclr", **SSL})
    plain, other = (run.folder.records()[-1]["metrics"]["train_loss"] for run in (simulation, augmented))
    assert plain < other


def test_a_batch_of_one_is_skipped(simulate: Simulate) -> None:
    """Clients of 1 sample more than a batch: the rest is no batch, and nothing is NaN."""
    data = simulate("fedavg", play=False, **SSL).federation.data
    size = data.size(0) - 1
    simulation = simulate("fedavg", **{"objective.name": "barlow-twins", **SSL, "train.batch_size": size})
    assert torch.isfinite(simulation.state.row).all()


def test_no_head_is_trained_afresh_without_labels(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"eval.fresh_head .* objective simclr learns without labels"):
        simulate("fedavg", play=False, **{"objective.name": "simclr", "eval.fresh_head": 1, **SSL})
