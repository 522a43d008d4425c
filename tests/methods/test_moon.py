"""MOON: its loss against the paper's form, and runs against a slow version."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.objectives.moon import model_contrast
from fedpriv.simulation.simulation import Simulation
from tests.marks import quick_first
from tests.methods.against_oracle import RAGGED, replay, same
from tests.oracles import global_baselines as oracles

Simulate = Callable[..., Simulation]


def by_the_paper(z: torch.Tensor, received: torch.Tensor, previous: torch.Tensor, tau: float) -> torch.Tensor:
    def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    up, down = torch.exp(cosine(z, received) / tau), torch.exp(cosine(z, previous) / tau)
    return -torch.log(up / (up + down))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.floats(0.2, 5), st.integers(1, 5))
def test_it_is_the_two_way_softmax_with_its_gradient(seed: int, tau: float, count: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    z, received, previous = (torch.randn(count, 6, dtype=torch.float64, generator=draw) for _ in range(3))
    z.requires_grad_(True)
    ours, theirs = model_contrast(z, received, previous, tau), by_the_paper(z, received, previous, tau)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    a, b = (torch.autograd.grad(loss.sum(), z)[0] for loss in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def test_values_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[0.0, 3.0]], dtype=torch.float64)
    assert float(model_contrast(z, other, other, 0.5)) == pytest.approx(math.log(2), abs=1e-15)
    assert float(model_contrast(z, 5 * z, -2 * z, 0.5)) == pytest.approx(math.log1p(math.exp(-4)), abs=1e-12)
    assert float(model_contrast(z, -z, z, 0.5)) == pytest.approx(math.log1p(math.exp(4)), abs=1e-12)
    assert math.isfinite(float(model_contrast(z, -z, z, 1e-4))), "no overflow at a low temperature"
    assert math.isfinite(float(model_contrast(0 * z, z, other, 0.5))), "a dead projector"


def test_reference_models_get_no_gradient() -> None:
    z, received, previous = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
    model_contrast(z, received, previous, 0.5).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and received.grad is None and previous.grad is None


@pytest.mark.parametrize("cache", quick_first([True, False]))
def test_four_rounds_equal_the_oracle(simulate: Simulate, cache: bool) -> None:
    options = {"method.mu": 3.0, "method.tau": 0.7, "train.rounds": 4, "train.participation": 0.6, "train.cache_features": cache}
    simulation = simulate("moon", **{**RAGGED, **options})
    same(simulation, replay(simulation, oracles.moon, mu=3.0, tau=0.7).model)


def test_without_the_term_it_is_fedavg_bit_for_bit(simulate: Simulate) -> None:
    shared = {"train.participation": 0.6}
    plain, off, on = (simulate(m, **shared, **o) for m, o in (("fedavg", {}), ("moon", {"method.mu": 0}), ("moon", {})))
    assert torch.equal(plain.state.row, off.state.row) and off.progress.clients == {}
    assert not torch.equal(plain.state.row, on.state.row)


def test_a_first_update_has_no_contrast(simulate: Simulate) -> None:
    shared = {"train.rounds": 1}
    assert torch.equal(simulate("fedavg", **shared).state.row, simulate("moon", **shared).state.row)


def test_a_client_keeps_one_model_as_trained_not_as_received(simulate: Simulate) -> None:
    simulation = simulate("moon", **{"train.rounds": 1})
    for client in simulation.participants(1):
        kept = simulation.stored(client)
        assert kept is not None and set(kept) == {"moon.previous"}
        uploaded = kept["moon.previous"]
        assert uploaded.shape == simulation.state.row.shape
        assert not torch.equal(uploaded, simulation.federation.initial)
    rows = torch.stack([(simulation.stored(c) or {})["moon.previous"] for c in sorted(simulation.participants(1))])
    sizes = [simulation.federation.data.size(c) for c in sorted(simulation.participants(1))]
    torch.testing.assert_close(torch.tensor(sizes).float() / sum(sizes) @ rows, simulation.state.row, rtol=1e-5, atol=1e-6)


def test_the_contrast_is_there_under_sample_level_dp_too(simulate: Simulate) -> None:
    private = {"privacy.level": "sample", "privacy.noise": 4.0, "train.participation": 1.0, "train.rounds": 2, "data.clients": 3}
    private |= {"data.limit": 90, "data.partition.name": "iid"}
    moon, off = (simulate("moon", **private, **{"method.mu": mu}) for mu in (5.0, 0.0))
    assert not torch.equal(moon.state.row, off.state.row)
