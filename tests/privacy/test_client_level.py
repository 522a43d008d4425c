"""The server's noisy mean: sensitivity, denominator, noise, and who is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedpriv.methods.base import ServerState
from fedpriv.parameters import ParameterSpace
from fedpriv.privacy.client_level import NoisyMean
from fedpriv.server.sampling import participants
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Payload, seal
from fedpriv.wire.coding import Upload

Simulate = Callable[..., Simulation]
C, M = 0.5, 4.0


def net(width: int = 3) -> tuple[ParameterSpace, Tensor]:
    module = nn.ModuleDict({"encoder": nn.Linear(width, width), "head": nn.Linear(width, 2)})
    space = ParameterSpace.of(module)
    return space, space.row_of(module)


def uploads(space: ParameterSpace, row: Tensor, count: int, scale: float = 0.3) -> list[Upload]:
    drawn = torch.Generator().manual_seed(count)
    rows = [row + scale * k * torch.randn(row.shape, generator=drawn) for k in range(count)]
    return [Upload(seal(Payload(space.unpack(row), round=1, client=k))) for k, row in enumerate(rows)]


def merge(names: tuple[str, ...], space: ParameterSpace, row: Tensor, sent: list[Upload], noise: float) -> Tensor:
    mean = NoisyMean(space, names, C, noise, M)
    state = mean(ServerState(row.clone()), sent, space.unpack(row), torch.Generator().manual_seed(1))
    return state.row


def test_without_noise_it_is_the_sum_of_clipped_changes_over_m() -> None:
    space, row = net()
    sent = uploads(space, row, 5)
    expected = torch.zeros(len(row), dtype=torch.float64)
    for upload in sent:
        change = space.pack(upload.tensors(), torch.empty_like(row)).double() - row.double()
        expected += change * min(1.0, C / max(float(change.norm()), 1e-12))
    moved = merge(space.names, space, row, sent, noise=0.0).double() - row
    torch.testing.assert_close(moved, expected / M, rtol=0, atol=1e-6)


def test_a_client_more_moves_the_mean_by_at_most_c_over_m() -> None:
    space, row = net()
    sent = uploads(space, row, 6, scale=30.0)
    whole = merge(space.names, space, row, sent, noise=0.0)
    for left_out in range(6):
        without = merge(space.names, space, row, sent[:left_out] + sent[left_out + 1 :], noise=0.0)
        assert float((whole - without).norm()) <= C / M + 1e-5


def test_client_level_noise_has_standard_deviation_zc_over_m() -> None:
    space, row = net(150)
    for sent in ([], uploads(space, row, 3)):
        noise = (merge(space.names, space, row, sent, 2.0) - merge(space.names, space, row, sent, 0.0)).double()
        n, sigma = len(noise), 2.0 * C / M
        assert abs(noise.mean()) < 4 * sigma / math.sqrt(n)
        assert abs(noise.var() / sigma**2 - 1) < 4 * math.sqrt(2 / n) + 1e-4


def test_what_is_not_sent_gets_neither_change_nor_noise() -> None:
    space, row = net()
    names = space.select(["encoder"])
    new = merge(names, space, row, uploads(space, row, 3), noise=1.0)
    for name in space.names:
        assert torch.equal(space.view(new, name), space.view(row, name)) == (name not in names)


def test_clients_are_drawn_independently(simulate: Simulate) -> None:
    """The number of participants is binomial, and a client's draw does not depend on who else is there."""
    overrides = {"privacy.level": "client", "privacy.noise": 1.0, "train.participation": 0.3}
    run = simulate("fedavg", play=False, **overrides)
    agreement, everyone = run.agreement, run.agreement.trainable
    rounds = [participants(agreement, round) for round in range(1, 501)]
    counts = torch.tensor([float(len(chosen)) for chosen in rounds])
    n, q = len(everyone), 0.3
    assert abs(counts.mean() - n * q) < 4 * math.sqrt(n * q * (1 - q) / 500)
    assert counts.var() == pytest.approx(n * q * (1 - q), rel=0.3)
    assert counts.min() == 0
    fewer = [
        participants(replace(agreement, declared=replace(agreement.declared, trainable=everyone[1:])), round)
        for round in range(1, 20)
    ]
    assert fewer == [[c for c in chosen if c != everyone[0]] for chosen in rounds[:19]]
