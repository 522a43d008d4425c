"""Weight changes of many local steps, against torch's SGD."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.observation import Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.analytic import row_ratios
from fedpriv.attacks.gradients.multistep import as_gradient, mean_gradient, response
from tests.attacks.client import change, gradient, linear_net, mlp, observe, pictures

SCHEDULES = [
    Schedule(lr=0.05, steps=steps, momentum=momentum, weight_decay=decay, weight_decay_bias=bias)
    for steps in (1, 2, 7)
    for momentum in (0.0, 0.5, 0.9)
    for decay, bias in ((0.0, 0.0), (1e-2, 0.0), (1e-2, 1e-2))
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_constant_gradient_is_recovered_exactly(schedule: Schedule) -> None:
    torch.manual_seed(0)
    w, g = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    trained = w.clone().requires_grad_()
    optimiser = torch.optim.SGD([trained], lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay)
    for _ in range(schedule.steps):
        trained.grad = g.clone()
        optimiser.step()
    recovered = mean_gradient({"w": trained.detach() - w}, {"w": w}, schedule)["w"]
    torch.testing.assert_close(recovered, g, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_sample_of_a_linear_model_is_exact_after_many_steps(schedule: Schedule) -> None:
    net, x, y = linear_net(), pictures(1), torch.tensor([3])
    observation = observe(net, change(net, x, y, schedule), kind="change", schedule=schedule)
    best = row_ratios(observation)[0]
    # With a penalty the weights of the gradients in weight and bias differ by about lr K d (module head).
    off = schedule.lr * schedule.steps * abs(schedule.weight_decay - schedule.weight_decay_bias) / (1 - schedule.momentum)
    assert (best.values[0] - x[0]).abs().max() <= 1e-9 + off
    assert best.is_image and best.plausible[0]


def test_weight_decay_left_in_spoils_the_row_ratio() -> None:
    schedule = Schedule(lr=0.05, steps=7, momentum=0.5, weight_decay=1e-1)
    net, x, y = linear_net(), pictures(1), torch.tensor([3])
    observation = observe(net, change(net, x, y, schedule), kind="change", schedule=schedule)
    blind = replace(observation, schedule=replace(schedule, weight_decay=0.0))
    undone, left = ((row_ratios(seen)[0].values[0] - x[0]).abs().max() for seen in (observation, blind))
    assert undone < left / 5


def test_small_weight_decay_follows_the_first_order_formula() -> None:
    lr, m, steps, decay = 0.01, 0.5, 1000, 1e-6
    exact = response(Schedule(lr=lr, steps=steps, momentum=m), decay)
    total = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
    assert exact.gain == pytest.approx(lr * total, rel=1e-4)
    assert exact.shrink == pytest.approx(-lr * total * decay, rel=1e-4)
    assert exact.shrink == pytest.approx(-2 * lr * steps * decay, rel=2e-3)


def test_small_steps_give_the_gradient() -> None:
    schedule = Schedule(lr=1e-5, steps=5, batch_size=8, momentum=0.5, weight_decay=1e-3)
    net, x, y = mlp(), pictures(8), torch.arange(8) % 5
    recovered = as_gradient(observe(net, change(net, x, y, schedule), kind="change", schedule=schedule))
    assert recovered.kind == "gradient"
    for name, g in gradient(net, x, y).items():
        torch.testing.assert_close(recovered.shared[name], g, rtol=1e-3, atol=1e-6)


def test_as_gradient_without_schedule_keeps_the_direction() -> None:
    schedule = Schedule(lr=0.1, weight_decay=1e-3)
    net, x, y = linear_net(), pictures(1), torch.tensor([0])
    sent = change(net, x, y, Schedule(lr=0.1))
    blind = as_gradient(observe(net, sent, kind="change", schedule=None))
    torch.testing.assert_close(blind.shared["top.bias"] / 0.1, gradient(net, x, y)["top.bias"])
    assert blind.altered.rescaled, "its length says nothing"
    assert not as_gradient(observe(net, sent, kind="change", schedule=Schedule(lr=0.1))).altered.rescaled
    with pytest.raises(Inapplicable, match=r"top\.weight"):
        as_gradient(observe(net, sent, kind="change", schedule=schedule, weights={}))
