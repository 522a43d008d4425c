"""The direct attacks by name, and the inversion of features, against the images that made the messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.image.direct import Analytic, AnalyticFeatures, Unrolled
from fedpriv.attacks.image.feature_inversion import _before
from fedpriv.attacks.lab.nets import one_for_each
from fedpriv.attacks.scoring.scores import match, missing
from tests.attacks.client import CLASSES, change, gradient, linear_net, mlp, observe, pictures


def convolutional() -> SplitNet:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(216, 20), nn.Sigmoid())
    return SplitNet(body, nn.Linear(20, CLASSES)).double()


def hidden_head(net: SplitNet, seed: int = 0, noise: bool = False) -> tuple[Observation, torch.Tensor]:
    """One sample's gradient of the body; the head is unknown."""
    x = pictures(1, seed)
    sent = {name: g for name, g in gradient(net, x, torch.tensor([2])).items() if name.startswith("body")}
    if noise:
        torch.manual_seed(seed)
        sent = {name: g.std() * torch.randn_like(g) for name, g in sent.items()}
    weights = {name: p.detach() for name, p in net.named_parameters() if name.startswith("body")}
    return observe(net, sent, weights=weights), x


def test_analytic_takes_many_messages_and_keeps_their_order() -> None:
    messages = [hidden_head(mlp(), seed) for seed in range(3)]
    result = Analytic().run([observation for observation, _ in messages])
    torch.testing.assert_close(result.images, torch.cat([x for _, x in messages]))
    assert result.labels.tolist() == [-1] * 3 and result.loss.shape == (3,) and (result.loss < 1e-9).all()


def test_analytic_gives_as_many_images_as_there_are_samples() -> None:
    net, x = mlp(), pictures(4)
    result = Analytic().run([observe(net, gradient(net, x, torch.arange(4)), num_examples=4)])
    assert result.raw.shape == x.shape and result.curve.shape == (1, 1)


def several(n: int, seed: int = 0) -> tuple[Observation, torch.Tensor]:
    """The message of n images, each with exclusive neurons."""
    images = pictures(n, seed)
    net = one_for_each(images.float(), seed, CLASSES).double()
    return observe(net, gradient(net, images, torch.arange(n) % CLASSES), num_examples=n), images


def test_analytic_returns_all_plausible_images_of_a_batch() -> None:
    message, images = several(8)
    stated, unstated = (Analytic().run([sent]).raw for sent in (message, replace(message, num_examples=None)))
    torch.testing.assert_close(unstated, stated)
    torch.testing.assert_close(stated[match(stated, images)], images)
    torch.manual_seed(0)
    noise = {name: torch.randn_like(tensor) for name, tensor in message.shared.items()}
    nothing = Analytic().run([replace(message, shared=noise, num_examples=None)])
    assert len(nothing.raw) == 0 and float(nothing.loss) == 1


def test_messages_that_state_no_number_have_as_many_rows_each() -> None:
    result = Analytic().run([replace(several(n, n)[0], num_examples=None) for n in (3, 5)])
    assert missing(result.raw).tolist() == [False] * 3 + [True] * 2 + [False] * 5 and len(result.labels) == 10


def test_analytic_says_when_the_layer_is_not_fed_the_image() -> None:
    with pytest.raises(Inapplicable, match="analytic-features"):
        Analytic().run([hidden_head(convolutional())[0]])


def test_analytic_features_inverts_a_convolutional_body() -> None:
    observation, x = hidden_head(convolutional())
    result = AnalyticFeatures(adam=200, lbfgs=10, lr=0.1).run([observation])
    assert float(result.loss[0]) < 1e-4
    assert (result.images - x).square().mean() < 1e-2


class Around(nn.Module):
    """A net with a path around its linear layer and the convolution before, unless ``plain``."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Conv2d(1, 6, 3, padding=1)
        self.second, self.last = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(216, 216)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).sigmoid()
        features: torch.Tensor = self.last(self.second(x).sigmoid().flatten(1)).sigmoid()
        return {"plain": features, "residual": x.flatten(1) + features, "gate": x.flatten(1) * features}[self.kind]


def around(kind: str) -> tuple[Observation, torch.Tensor]:
    torch.manual_seed(0)
    return hidden_head(SplitNet(Around(kind), nn.Linear(216, CLASSES)).double())


@pytest.mark.parametrize("kind", ["residual", "gate"])
def test_analytic_features_ignores_bypassing_gradients(kind: str) -> None:
    """The known signal belongs to one path; only gradients on that path alone agree with it."""
    message, x = around(kind)
    result = AnalyticFeatures(adam=40, lbfgs=5).run([message])
    assert float(result.loss[0]) < 1e-4 and (result.images - x).square().mean() < 1e-2


@pytest.mark.parametrize(("kind", "layers"), [("plain", ["first", "second"]), ("residual", ["second"]), ("gate", ["second"])])
def test_gradients_on_the_way_to_the_layer_are_matched(kind: str, layers: list[str]) -> None:
    names = [f"body.{layer}.{of}" for layer in layers for of in ("weight", "bias")]
    assert _before(around(kind)[0], "body.last") == names


def test_noise_gives_no_features() -> None:
    observation, x = hidden_head(convolutional(), noise=True)
    result = AnalyticFeatures(adam=50, lbfgs=2).run([observation])
    assert float(result.loss[0]) > 0.1 and (result.images - x).square().mean() > 0.05


def test_features_of_a_batch_are_refused() -> None:
    net = convolutional()
    batch = observe(net, gradient(net, pictures(2), torch.tensor([0, 1])), num_examples=2)
    with pytest.raises(Inapplicable, match="one sample"):
        AnalyticFeatures().run([batch])


def test_unrolled_by_name() -> None:
    net, x, schedule = linear_net(), pictures(1), Schedule(lr=0.1, steps=2, momentum=0.5)
    sent = change(net, x, torch.tensor([3]), schedule)
    result = Unrolled(iterations=20, restarts=1).run([observe(net, sent, kind="change", schedule=schedule)])
    assert result.labels.tolist() == [3] and (result.images - x).square().mean() < 1e-3
    assert result.curve.shape[1] == 1 and int(result.restart[0]) in (0, 1)
