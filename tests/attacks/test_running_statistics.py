"""Membership and mean colour from running statistics, against a hand-made batch in NumPy and torch's own BatchNorm."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Passes, SplitNet, ThreatModel, blank
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.batch_statistics import layer_statistics, sample_statistics
from fedpriv.attacks.inference import membership_controls
from fedpriv.attacks.inference.membership_controls import running_statistics_control
from fedpriv.attacks.inference.running_statistics import mean_colour, shares_of_batches

SHAPE, MEAN, STD = (3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def net(seed: int = 0, momentum: float | None = 0.1, channels: int = 16) -> SplitNet:
    """Two convolutions, each with BatchNorm."""
    torch.manual_seed(seed)
    body = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels, momentum=momentum), nn.ReLU(),
        nn.Conv2d(channels, 24, 3, 2), nn.BatchNorm2d(24), nn.Tanh(), nn.Flatten(),
    )  # fmt: skip
    return SplitNet(body, nn.Linear(216, 4))


def images(n: int, seed: int = 0) -> Tensor:
    """Smooth ones in [0, 1], each with a colour of its own, ``(n, 3, 8, 8)``."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 3, 3, generator=draw) * 0.5 + 0.5 * torch.rand(n, 3, 1, 1, generator=draw)
    return F.interpolate(coarse, size=SHAPE[1:], mode="bilinear")


def normalised(pictures: Tensor) -> Tensor:
    return (pictures - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def message(start: SplitNet, members: Tensor, steps: int = 1, batch: int | None = None, lr: float = 0.05) -> Observation:
    """What a client sends after torch's own steps of SGD on consecutive batches."""
    trained = copy.deepcopy(start).train()
    optimiser = torch.optim.SGD(trained.parameters(), lr=lr)
    batches = normalised(members).split(batch or len(members))
    labels = (torch.arange(len(members)) % 4).split(batch or len(members))
    for step in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(trained(batches[step % len(batches)]), labels[step % len(batches)]).backward()
        optimiser.step()
    before, after = dict(start.state_dict()), dict(trained.state_dict())
    parameters = dict(start.named_parameters())
    return Observation(
        {name: after[name] - before[name] for name in parameters}, "change", before, blank(copy.deepcopy(start).train()), SHAPE,
        4, ThreatModel(), MEAN, STD, num_examples=len(members), passes=Passes(steps, batch or len(members)),
        buffers={name: after[name] for name in before if "running" in name},
    )  # fmt: skip


def parts(pictures: Tensor) -> Any:
    return lambda: iter(normalised(pictures).split(16))


def area(scores: np.ndarray, members: int) -> float:
    """The area under the curve: the share of pairs in order, members first."""
    inside, outside = scores[:members, None], scores[None, members:]
    return float((inside > outside).mean() + 0.5 * (inside == outside).mean())


def test_one_batch_is_read_to_the_last_digit() -> None:
    """NumPy computes the convolution and its statistics."""
    start, members = net(), images(5)
    x = np.pad(normalised(members).double().numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    weight, bias = (p.detach().double().numpy() for p in start.body[0].parameters())
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    fed = np.einsum("nchwij,kcij->nkhw", windows, weight) + bias[:, None, None]
    seen = layer_statistics(message(start, members))
    assert list(seen) == ["body.1", "body.4"]
    np.testing.assert_allclose(seen["body.1"].mean, fed.mean((0, 2, 3)), rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(seen["body.1"].variance, fed.var((0, 2, 3), ddof=1), rtol=1e-4, atol=2e-6)
    own = sample_statistics(message(start, members), seen, parts(members))
    np.testing.assert_allclose(own["body.1"].means, fed.mean((2, 3)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(own["body.1"].squares, (fed**2).mean((2, 3)), rtol=1e-4, atol=1e-5)


def test_the_weights_of_several_batches() -> None:
    """Without a learning rate: each batch's statistics are those of the first weights."""
    start, members = net(), images(12)
    with torch.no_grad():
        fed = start.body[0](normalised(members)).double()
    batches = [part.mean((0, 2, 3)) for part in fed.split(4)]
    running = torch.zeros(16, dtype=torch.float64)
    for batch in (*batches, batches[0]):
        running = 0.9 * running + 0.1 * batch
    seen = layer_statistics(message(start, members, steps=4, batch=4, lr=0.0))["body.1"]
    assert sum(seen.weights) == pytest.approx(1) and seen.weights[3] / seen.weights[2] == pytest.approx(1 / 0.9)
    torch.testing.assert_close(seen.mean, running / (1 - 0.9**4), rtol=1e-4, atol=1e-6)


def test_inputs_of_later_layers_use_earlier_statistics() -> None:
    start, members = net(), images(6)
    sent = message(start, members)
    own = sample_statistics(sent, layer_statistics(sent), parts(members))["body.4"]
    with torch.no_grad():
        fed = copy.deepcopy(start).train().body[:4](normalised(members)).double()
    torch.testing.assert_close(own.means, fed.mean((2, 3)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_members_of_a_batch_are_named_and_of_another_client_none(share: float) -> None:
    """Half of the members may be candidates alone: the others are part of the sums, too."""
    start, members, others = net(channels=32), images(10), images(90, seed=1)
    inside = int(10 * share)
    candidates = torch.cat([members[:inside], others])
    scores = shares_of_batches(message(start, members), parts(candidates))
    assert scores.shape == (90 + inside,) and scores.min() >= 0
    assert area(scores, inside) > (0.999 if share == 1 else 0.8)
    if share == 1:
        assert set(np.argsort(-scores)[:10]) == set(range(10)) and np.allclose(scores[:10], 1, atol=0.2)
    elsewhere = shares_of_batches(message(start, images(10, seed=2)), parts(candidates))
    assert abs(area(elsewhere, inside) - 0.5) < 0.25


def test_members_behind_five_steps() -> None:
    start, members, others = net(), images(5), images(95, seed=1)
    scores = shares_of_batches(message(start, members, steps=5), parts(torch.cat([members, others])))
    assert area(scores, 5) > 0.95


def test_noise_is_taken_into_account() -> None:
    start, members, others = net(), images(5), images(95, seed=1)
    sent, draw = message(start, members), torch.Generator().manual_seed(0)
    noisy = {name: tensor + 1e-4 * torch.randn(tensor.shape, generator=draw) for name, tensor in sent.buffers.items()}
    known = Altered(variance=dict.fromkeys(noisy, 1e-8))
    candidates = parts(torch.cat([members, others]))
    assert area(shares_of_batches(replace(sent, buffers=noisy, altered=known), candidates), 5) > 0.95
    loud = {name: tensor + 10 * torch.randn(tensor.shape, generator=draw) for name, tensor in sent.buffers.items()}
    known = Altered(variance=dict.fromkeys(noisy, 100.0))
    assert abs(area(shares_of_batches(replace(sent, buffers=loud, altered=known), candidates), 5) - 0.5) < 0.35


def test_entries_that_were_not_sent_are_left_out() -> None:
    start, members, others = net(), images(5), images(95, seed=1)
    sent = message(start, members)
    kept = {name: torch.arange(len(tensor)) % 4 > 0 for name, tensor in sent.buffers.items()}
    pruned = {name: torch.where(kept[name], tensor, sent.weights[name]) for name, tensor in sent.buffers.items()}
    scores = shares_of_batches(replace(sent, buffers=pruned, altered=Altered(kept=kept)), parts(torch.cat([members, others])))
    assert area(scores, 5) > 0.95


def test_a_first_layer_alone_where_the_scales_stay_with_the_client() -> None:
    start, members, others = net(), images(5), images(45, seed=1)
    sent = message(start, members)
    hidden = replace(sent, weights={name: tensor for name, tensor in sent.weights.items() if name != "body.1.weight"})
    assert list(sample_statistics(hidden, layer_statistics(hidden), parts(members))) == ["body.1"]
    assert area(shares_of_batches(hidden, parts(torch.cat([members, others]))), 5) > 0.99


@pytest.mark.parametrize("steps", [1, 3])
def test_the_mean_colour(steps: int) -> None:
    members = images(10)
    result = mean_colour(message(net(), members, steps))
    torch.testing.assert_close(result.float(), members.mean((0, 2, 3)), rtol=0, atol=0.02)
    assert float((torch.tensor(MEAN) - members.mean((0, 2, 3))).abs().max()) > 0.05  # what one would say without the message


def test_what_cannot_be_read_says_why() -> None:
    sent = message(net(), images(5))
    for other, why in (
        (replace(sent, buffers={}), "no running statistics"),
        (replace(sent, passes=None), "not known how many batches"),
        (replace(sent, altered=Altered(rescaled=True)), "clipped"),
        (message(net(momentum=None), images(5)), "momentum=None"),
        (replace(sent, weights={n: t for n, t in sent.weights.items() if n != "body.0.weight"}), "layers before"),
    ):
        with pytest.raises(Inapplicable, match=why):
            shares_of_batches(other, parts(images(4)))
    with pytest.raises(Inapplicable, match="fewer independent channels"):
        mean_colour(message(net(channels=2), images(5)))
    curved = net()
    curved.body.insert(1, nn.Tanh())
    with pytest.raises(Inapplicable, match="not fed an affine function"):
        mean_colour(message(curved, images(5)))


def test_its_control_finds_members() -> None:
    control = running_statistics_control()
    assert control.passed and "AUC 1.00" in control.sentence


def test_its_control_fails_for_an_attack_that_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    monkeypatch.setattr(membership_controls, "shares_of_batches", lambda message, candidates: draw.random(16))
    assert not running_statistics_control().passed
