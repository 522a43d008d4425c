"""Curvature, directions and rises against what is known by formula, and gradient norms against a client's own gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.experiments.pictures.gradient_norms import gradient_norms
from fedpriv.experiments.pictures.landscape import SampleLoss, filter_direction, rises, surface, top_eigenvalue
from fedpriv.simulation.simulation import Simulation

Simulate = Callable[..., Simulation]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("eigenvalues", "top"), [([3.0, 1.0, 0.5], 3.0), ([2.0, -5.0, 1.0], 2.0), ([-1.0, -4.0, -2.0], -1.0), ([0.0, 0.0, 0.0], 0.0)]
)
def test_the_top_eigenvalue_is_the_largest_and_not_the_longest(eigenvalues: list[float], top: float) -> None:
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator(), dtype=torch.float64)).Q
    matrix = rotation @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ rotation.T
    value, taken = top_eigenvalue(lambda v: matrix @ v, torch.ones(3, dtype=torch.float64), 500, 1e-9)
    assert abs(value - top) < 1e-3 and taken <= 1000


def test_curvature_is_the_derivative_of_the_gradient(simulate: Simulate) -> None:
    simulation = simulate("fedavg", **{"train.rounds": 1, "model.name": "lenet_sigmoid", "model.projection": "none"})
    fed, row = simulation.federation, simulation.state.row.clone()
    images, labels = fed.data.train(0)
    loss = SampleLoss(fed.resident, images, labels)
    along = filter_direction(fed.resident.space, row, generator())

    def gradient(at: Tensor) -> Tensor:
        fed.resident.row.copy_(at)
        return ModelLocalUpdate(fed.resident, fed.data.train(0), fed.config, 1, 0, {}, {}, True).gradient()

    step = 1e-3
    by_differences = (gradient(row + step * along) - gradient(row - step * along)) / (2 * step)
    product = loss.curvature(row, along)
    assert float((product - by_differences).norm() / product.norm()) < 0.02
    assert loss(row) == pytest.approx(float(torch.nn.functional.cross_entropy(fed.resident.net(images).logits, labels)), rel=1e-4)


def test_directions_have_the_filters_lengths_and_leave_biases(simulate: Simulate) -> None:
    fed = simulate("fedavg", play=False, **{"model.name": "resnet9_narrow", "data.clients": 5}).federation
    space, row = fed.resident.space, fed.initial
    direction, again, other = (filter_direction(space, row, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(direction, again) and not torch.equal(direction, other)
    for entry in space.entries:
        part = space.view(direction, entry.name)
        if entry.kind == "weight":
            torch.testing.assert_close(part.flatten(1).norm(dim=1), space.view(row, entry.name).flatten(1).norm(dim=1))
        else:
            assert not part.any()


def test_rises_and_surface_of_a_bowl() -> None:
    middle = torch.tensor([1.0, -2.0, 0.5])
    pairs = [(torch.tensor([1.0, 0, 0]), torch.tensor([0, 2.0, 0])), (torch.tensor([0, 0, 1.0]), torch.tensor([0, 1.0, 0]))]

    def bowl(row: Tensor) -> float:
        return 7 + float((row - middle).square().sum())

    risen = rises(bowl, middle, pairs, [0.5, 1.0])
    assert [rise.radius for rise in risen] == [0.5, 1.0]
    assert risen[1].per_pair == pytest.approx((2.5, 1.0)) and risen[1].mean == pytest.approx(1.75)
    assert risen[1].maximum == pytest.approx(4.0) and risen[0].mean == pytest.approx(1.75 / 4)
    table = surface(bowl, middle, pairs[0], [-1, 0, 1])
    assert [value for line in table for value in line] == pytest.approx([12, 11, 12, 8, 7, 8, 12, 11, 12])


def test_gradient_norms_of_the_received_and_the_trained_model(simulate: Simulate) -> None:
    simulation = simulate("fedavg", **{"train.rounds": 1})
    fed = simulation.federation
    norms = gradient_norms(fed, simulation.state, [4, 1], 2)
    assert tuple(norms) == fed.agreement.layers and all(len(norm.before) == len(norm.after) == 2 for norm in norms.values())
    fed.resident.row.copy_(simulation.state.row)
    update = ModelLocalUpdate(fed.resident, fed.data.train(1), fed.config, 2, 1, {}, {}, True)
    for trained in (False, True):
        if trained:
            fed.method.local_update(update)
        gradient = update.gradient()
        for name, norm in norms.items():
            value = float(fed.resident.space.view(gradient, name).norm())
            assert math.isclose((norm.after if trained else norm.before)[1], value, rel_tol=1e-5)
