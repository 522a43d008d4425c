"""Barycentres by POT against what they must be: closed forms for single masses, permuted and equal clouds."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedpriv.aggregation import transport
from fedpriv.aggregation.transport import neuron_barycenter, sinkhorn_barycenter
from fedpriv.errors import UsageError


def even(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def single(at: int, mass: float, d: int = 61) -> Tensor:
    vector = torch.zeros(d, dtype=torch.float64)
    vector[at] = mass
    return vector


def middle(masses: Tensor) -> float:
    return float((masses * torch.arange(len(masses))).sum() / masses.sum())


@pytest.mark.parametrize(("weights", "at"), [((0.5, 0.5), 30.0), ((0.75, 0.25), 20.0)])
def test_single_masses_meet_at_the_mean_of_their_positions(weights: tuple[float, float], at: float) -> None:
    """The W_2 barycentre of points is their mean; the entropy spreads it evenly to both sides."""
    clients = torch.stack([single(10, 2.0), single(50, 4.0)])
    base = torch.tensor(weights, dtype=torch.float64)
    center = sinkhorn_barycenter(clients, base, reg=0.002, iterations=1000)
    assert center.min() >= 0 and float(center.sum()) == pytest.approx(float(base @ clients.sum(1)))
    assert middle(center) == pytest.approx(at, abs=0.2) and abs(int(center.argmax()) - at) <= 1


@pytest.mark.slow
def test_it_is_that_of_the_iteration_in_the_logarithm() -> None:
    """Another method of POT, fifty times slower."""
    clients, base = drawn(4, 40).abs(), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    shares, places = (clients / clients.sum(1, keepdim=True)).T.numpy(), np.linspace(0, 1, 40)[:, None]
    expected = ot.bregman.barycenter(shares, ot.dist(places), 0.01, base.numpy(), "sinkhorn_log", 2000, stopThr=1e-12)
    center = sinkhorn_barycenter(clients, base, 0.01, 2000)
    np.testing.assert_allclose(center / center.sum(), expected / expected.sum(), rtol=1e-4, atol=1e-9)


def test_less_entropy_spreads_the_masses_less() -> None:
    clients = torch.stack([single(20, 1.0), single(40, 1.0)])
    spread = []
    for reg in (0.1, 0.01, 0.002):
        center = sinkhorn_barycenter(clients, even(2), reg, 1000)
        spread.append(float((center * (torch.arange(61) - 30).square()).sum()))
    assert spread[0] > 2 * spread[1] > 4 * spread[2]


def test_positive_and_negative_parts_move_apart() -> None:
    """The opposite vectors give the opposite barycentre; a client without a part has no say in where that part goes."""
    clients = torch.stack([single(10, 1.0) - single(50, 3.0), single(20, 1.0), -single(40, 1.0)])
    center = sinkhorn_barycenter(clients, even(3), 0.002, 1000)
    torch.testing.assert_close(sinkhorn_barycenter(-clients, even(3), 0.002, 1000), -center)
    up, down = center.clamp(min=0), (-center).clamp(min=0)
    assert middle(up) == pytest.approx(15, abs=0.3) and float(up.sum()) == pytest.approx(2 / 3, rel=1e-3)
    assert middle(down) == pytest.approx(45, abs=0.3) and float(down.sum()) == pytest.approx(4 / 3, rel=1e-3)


def test_nothing_sent_and_a_single_entry() -> None:
    assert not sinkhorn_barycenter(torch.zeros(3, 5), even(3), 0.01, 10).any()
    single = torch.tensor([[1.0], [-3.0]], dtype=torch.float64)
    torch.testing.assert_close(sinkhorn_barycenter(single, even(2), 0.01, 10), torch.tensor([-1.0], dtype=torch.float64))


def test_large_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"161,364 entries needs 208 GB .* dyn_layers"):
        sinkhorn_barycenter(torch.zeros(1, 161_364), even(1), 0.01, 10)
    monkeypatch.setattr(transport, "LARGEST", 5)
    sinkhorn_barycenter(torch.ones(2, 5), even(2), 0.01, 10)


def test_neurons_of_like_nets_are_averaged() -> None:
    """Each is matched with itself, so the barycentre is the weighted mean."""
    net, base = drawn(12, 7), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    clients = torch.stack([net + 0.05 * drawn(12, 7, seed=seed) for seed in (1, 2, 3)]).flatten(1)
    torch.testing.assert_close(neuron_barycenter(clients, base, 12, 100), base @ clients)


def test_neurons_in_another_order_are_found_again() -> None:
    """Three clients with the same neurons, two in the same order: the clouds are equal, so the barycentre is that cloud, which a
    mean by position is not."""
    net = 10 * drawn(6, 4)
    clients = torch.stack([net, net, net[torch.randperm(6, generator=torch.Generator().manual_seed(1))]])
    center = neuron_barycenter(clients.flatten(1), even(3), 6, 100).view(6, 4)
    apart = torch.cdist(center, net)
    rows, columns = linear_sum_assignment(apart.numpy())
    assert float(apart[rows, columns].max()) < 1e-6
    assert float(torch.cdist(clients.mean(0), net).amin(1).max()) > 1
