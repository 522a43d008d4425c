"""The differentiable local run, against torch's SGD, and what matching it recovers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.local_update import simulate_local_update
from fedpriv.attacks.image.unrolled import UnrolledOptions, unroll
from tests.attacks.client import CLASSES, change, linear_net, mlp, observe, pictures
from tests.marks import quick_first


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_the_simulation_is_torchs_sgd(momentum: float, decay: float) -> None:
    schedule = Schedule(lr=0.1, steps=5, batch_size=2, momentum=momentum, weight_decay=decay, weight_decay_bias=decay / 2)
    net, x, y = mlp(), pictures(3), torch.tensor([0, 4, 1])
    start = {name: p.detach() for name, p in net.named_parameters()}
    simulated = simulate_local_update(net, start, list(start), x, F.one_hot(y, CLASSES).double(), schedule)
    for name, sent in change(net, x, y, schedule).items():
        torch.testing.assert_close(simulated[name], sent, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "schedule",
    quick_first(
        [
            Schedule(lr=0.1, steps=3),
            Schedule(lr=0.1, steps=3, momentum=0.5),
            Schedule(lr=0.1, steps=3, momentum=0.5, weight_decay=1e-2),
        ]
    ),
)
def test_unrolled_recovers_one_sample_and_its_label(schedule: Schedule) -> None:
    net, x, y = linear_net(), pictures(1), torch.tensor([3])
    observation = observe(net, change(net, x, y, schedule), kind="change", schedule=schedule)
    recovered = unroll(observation, UnrolledOptions(iterations=8))
    assert recovered.loss < 1e-6
    assert (recovered.images - x).abs().max() < 1e-2 and int(recovered.labels.argmax()) == 3


def batch() -> tuple[Observation, torch.Tensor]:
    schedule = Schedule(lr=0.2, steps=4, batch_size=2, momentum=0.5, weight_decay=1e-3)
    net, x, y = mlp(act=nn.Tanh), pictures(2), torch.tensor([0, 4])
    sent = change(net, (x - 0.5) / 0.25, y, schedule)
    known = {"schedule": schedule, "num_examples": 2, "labels": y, "mean": (0.5,), "std": (0.25,)}
    return observe(net, sent, kind="change", **known), x


@pytest.mark.slow
def test_two_samples_are_recovered_and_normalisation_undone() -> None:
    observation, x = batch()
    recovered = unroll(observation, UnrolledOptions(iterations=6))
    assert recovered.loss == min(recovered.losses)
    assert (recovered.images - x).square().mean() < 1e-3


def test_random_numbers_are_not_explained() -> None:
    observation, x = batch()
    torch.manual_seed(0)
    noise = {name: t.std() * torch.randn_like(t) for name, t in observation.shared.items()}
    fake = observe(
        observation.net, noise, kind="change", schedule=observation.schedule, num_examples=2, labels=observation.labels
    )
    recovered = unroll(fake, UnrolledOptions(iterations=2, restarts=0))
    assert recovered.loss > 0.1 and (recovered.images - x).square().mean() > 0.05


def test_it_says_what_it_needs() -> None:
    observation, _ = batch()
    with pytest.raises(Inapplicable, match="schedule"):
        unroll(observe(observation.net, dict(observation.shared), kind="change"), UnrolledOptions())
