"""Inverting gradients: what it minimises, by the batch or as the user has set it; and which nets `invert` chooses it for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks import invert
from fedpriv.attacks.api.smooth import is_smooth
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, SplitNet
from fedpriv.attacks.core.options import taken
from fedpriv.attacks.gradients import matching
from fedpriv.attacks.gradients.distances import NEIGHBOURS
from fedpriv.attacks.image.dlg import Dlg
from fedpriv.attacks.image.inverting_gradients import InvertingGradients
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import observe, reference_victim

MEAN, STD = 0.4, 0.25
IMAGES, LABELS = default_images(4, side=8)[0], torch.arange(4)
"""Of different classes, so that the attack reads the labels off the gradient without error."""


def message(n: int) -> Observation:
    torch.manual_seed(0)
    net = SplitNet(nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten()), nn.Linear(72, 10))
    return replace(observe(net, (IMAGES[:n] - MEAN) / STD, LABELS[:n]), mean=(MEAN,), std=(STD,))


def cosine_and_variation(seen: Observation, images: Tensor) -> tuple[float, float]:
    """One minus the cosine of the gradients, by plain autograd in float64, and the total variation of the images, by loops."""
    net = torch.func.functional_call
    weights = {name: tensor.double().requires_grad_() for name, tensor in seen.weights.items()}
    logits = net(seen.net, weights, ((images.double() - MEAN) / STD,))
    guess = torch.autograd.grad(F.cross_entropy(logits, LABELS[: len(images)]), list(weights.values()))
    flat, there = (torch.cat([t.flatten().double() for t in some]) for some in (guess, [seen.shared[name] for name in weights]))
    rows = [(images[..., i + 1, :] - images[..., i, :]).abs() for i in range(7)]
    columns = [(images[..., i + 1] - images[..., i]).abs() for i in range(7)]
    variation = torch.stack(rows).mean() + torch.stack(columns).mean()
    return 1 - float(F.cosine_similarity(flat, there, dim=0)), float(variation)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("weight", [None, 0.0, 0.5])
def test_total_variation_weight_is_given_or_set_by_the_batch(weight: float | None, n: int) -> None:
    seen = message(n)
    result = InvertingGradients(steps=20, total_variation=weight).run([seen])
    distance, variation = cosine_and_variation(seen, result.raw)
    if weight is None:
        entries = sum(int(tensor.count_nonzero()) for tensor in seen.shared.values())
        differences = n * 3 * 8 * 8 * variation  # their sum, of which each has a Laplace distribution
        expected = torch.tensor(distance).log() + differences / NEIGHBOURS / (entries / 2)
    else:
        expected = torch.tensor(distance + weight * variation / STD)  # of the net's input
    assert float(result.loss) == pytest.approx(float(expected), rel=1e-3)
    assert len(result.curve) == 1 and result.iterations.tolist() == [20], "a loss below 0 does not end the search"


def test_known_errors_add_no_second_prior() -> None:
    seen = message(2)
    noisy = replace(seen, altered=Altered(variance=dict.fromkeys(seen.shared, 1e-4)))
    by_itself, without = (InvertingGradients(steps=2, total_variation=weight).run([noisy]) for weight in (None, 0.0))
    assert torch.equal(by_itself.raw, without.raw) and torch.equal(by_itself.loss, without.loss)


def test_all_restarts_are_run() -> None:
    """Whatever their loss, which may be negative."""
    assert InvertingGradients(steps=3, restarts=2).run([message(1)]).iterations.tolist() == [9]


def test_a_weight_may_be_any_number_from_0_or_none() -> None:
    def given(value: Any) -> Any:
        return taken(InvertingGradients, {"total_variation": value})["total_variation"]

    assert [given(value) for value in (0.5, 1, 0, None)] == [0.5, 1.0, 0.0, None] and isinstance(given(1), float)
    for value in (-0.1, float("inf"), "much", True):
        with pytest.raises(TypeError, match=f"total_variation must be a number, at least 0, not {value!r}"):
            given(value)


def test_vmap_is_used_for_several_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other attacks always use it."""
    asked = list[int]()
    batched = matching.vmap_or_loop

    def counted(function: Callable[..., Any], points: Tensor, data: Any) -> Any:
        asked.append(len(points))
        return batched(function, points, data)

    alone = InvertingGradients(steps=3).run([message(2)])
    monkeypatch.setattr(matching, "vmap_or_loop", counted)
    InvertingGradients(steps=1).run([message(2)])
    assert asked == []
    pair = InvertingGradients(steps=3).run([message(2)] * 2)
    assert set(asked) == {2}
    torch.testing.assert_close(pair.loss[0], alone.loss[0], rtol=1e-4, atol=1e-4)
    asked.clear()
    Dlg(steps=1, restarts=0).run([message(1)])
    assert asked


def convolutions(activation: Callable[[], nn.Module], *more: nn.Module, wide: int = 8) -> nn.Module:
    torch.manual_seed(0)
    last = (nn.Conv2d(wide, wide, 3, 2, 1), activation(), nn.Flatten(), nn.LazyLinear(10))
    return nn.Sequential(nn.Conv2d(3, wide, 3, 1, 1), *more, activation(), *last)


class Rectified(nn.Module):
    """A net whose ReLU is not a module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Linear(192, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.first(x.flatten(1)).relu())
        return out


def reference(batch_norm: bool) -> nn.Module:
    return reference_victim(0, height=8, width=8, batch_norm=batch_norm)


@pytest.mark.parametrize(
    ("net", "smooth"),
    [
        (reference(False), True),
        (reference(True), True),
        (convolutions(nn.GELU), True),
        (convolutions(nn.Tanh, nn.AvgPool2d(2)), True),
        (convolutions(nn.ELU), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), True),
        (convolutions(nn.ReLU), False),
        (convolutions(nn.ReLU, nn.BatchNorm2d(8)), False),
        (convolutions(nn.LeakyReLU), False),
        (convolutions(nn.Sigmoid, nn.MaxPool2d(2)), False),
        (Rectified(), False),
    ],
)
def test_whether_the_derivative_jumps_is_found_for_any_net(net: nn.Module, smooth: bool) -> None:
    with torch.no_grad():
        net(torch.rand(2, 3, 8, 8))  # lazy layers get their sizes
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert is_smooth(net, (3, 8, 8)) == smooth
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_log_posterior_recovers_images_of_a_relu_net() -> None:
    net = convolutions(nn.ReLU, wide=24)
    net(IMAGES)
    gradient = torch.autograd.grad(F.cross_entropy(net(IMAGES), LABELS), list(net.parameters()))
    result = invert(net, gradient, input_shape=(3, 8, 8), n=4, options={"steps": 150})
    assert result.attack == "inverting-gradients" and sorted(result.labels.tolist()) == LABELS.tolist()
    assert bool((result.scores(IMAGES).mse < 1e-2).all())


def test_a_smooth_net_is_searched_by_its_curvature() -> None:
    net = convolutions(nn.Sigmoid)
    net(IMAGES)
    gradient = torch.autograd.grad(F.cross_entropy(net(IMAGES[:1]), LABELS[:1]), list(net.parameters()))
    assert invert(net, gradient, input_shape=(3, 8, 8), options={"steps": 1, "restarts": 0}).attack == "idlg"
