"""Nets that people have, of which an attack must make what it can."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks import Inapplicable, invert
from fedpriv.attacks.api.inversion import observed
from fedpriv.attacks.api.user_net import cut
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.gradients.analytic import single_sample
from fedpriv.attacks.gradients.matching import build_case
from fedpriv.attacks.image.head_free import signal_matching
from fedpriv.attacks.lab.images import default_images

IMAGES, LABELS = default_images(2, side=8)
SHAPE = (3, 8, 8)


class Attends(nn.Module):
    """A transformer on patches: its layers get several vectors per image, its head their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, 2)
        self.blocks = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return logits


class Tied(nn.Module):
    """A net in which two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first, self.head = nn.Linear(192, 192), nn.Linear(192, 192), nn.Linear(192, 10)
        self.first.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(x.flatten(1)).sigmoid()).sigmoid())
        return logits


class TiedToHead(nn.Module):
    """A net whose head shares the weight of an earlier layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first, self.second = nn.Linear(16, 16), nn.Linear(192, 16), nn.Linear(16, 16)
        self.head.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(x.flatten(1)).sigmoid()).sigmoid())
        return logits


class Branches(nn.Module):
    """A net with branches that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(192, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x.flatten(1))
        if features.abs().max() > 1000:
            features = features / 1000
        logits: Tensor = self.head(features.sigmoid())
        return logits


class Pools(nn.Module):
    """A convolutional net whose last BatchNorm normalises one number of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 16, 8), nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.convolution(x)).sigmoid().flatten(1))
        return logits


class Reads(nn.Module):
    """A recurrent layer on the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.head = nn.GRU(24, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lines(x.transpose(1, 2).flatten(2))[0][:, -1])
        return logits


def gradient_of(net: nn.Module, count: int = 1, hidden: bool = False) -> dict[str, Tensor]:
    loss = F.cross_entropy(net(IMAGES[:count]), LABELS[:count])
    gradients = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    return {name: g for name, g in gradients.items() if not (hidden and name.startswith("head."))}


def message(net: nn.Module, hidden: bool = False) -> Observation:
    gradient = gradient_of(net, 1, hidden)
    return observed(net, cut(net, SHAPE), gradient, ThreatModel(), input_shape=SHAPE, n=1, schedule=None)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("attack", ["idlg", "head-free"])
@pytest.mark.parametrize("kind", [Attends, Tied, TiedToHead, Branches, Pools, Reads])
def test_each_of_them_can_be_attacked(kind: type[nn.Module], attack: str) -> None:
    torch.manual_seed(0)
    net, n = kind(), 2 if kind is Pools else 1
    hidden = attack == "head-free" and kind is not TiedToHead
    short = {"steps": 1, "restarts": 0} | ({"adam_steps": 1} if attack == "head-free" else {})
    result = invert(net, gradient_of(net, n, hidden), input_shape=SHAPE, attack=attack, n=n, options=short)
    assert result.images.shape == (n, *SHAPE) and bool(result.images.isfinite().all())


def test_features_of_lines_are_searched() -> None:
    """The gradient at the image is not contiguous, which L-BFGS does not accept."""
    torch.manual_seed(0)
    net, few = Reads(), {"adam": 2, "lbfgs": 1}
    result = invert(net, gradient_of(net), input_shape=SHAPE, attack="analytic-features", options=few)
    assert result.images.shape == (1, *SHAPE) and math.isfinite(result.loss)


@pytest.mark.parametrize("kind", [Tied, TiedToHead, Branches])
def test_small_ones_give_the_image_away(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = kind()
    assert invert(net, gradient_of(net), input_shape=SHAPE, attack="idlg").scores(IMAGES[:1]).mse.item() < 1e-3


def test_features_come_from_a_layer_with_one_vector_per_image() -> None:
    torch.manual_seed(0)
    net = Attends()
    (read,) = single_sample(message(net))
    assert read[0].layer == "top" and read[1] < 1e-6
    with pytest.raises(Inapplicable, match="the input of 'head' is features, not the image"):
        invert(net, gradient_of(net), input_shape=SHAPE, attack="analytic")


def test_tied_layers_have_no_closed_form() -> None:
    net = Tied()
    (read,) = single_sample(message(net))
    assert read[0].layer == "top"
    with pytest.raises(Inapplicable, match="the input of 'head' is features, not the image"):
        invert(net, gradient_of(net), input_shape=SHAPE, attack="analytic")


def test_bias_gradient_over_several_vectors_is_no_signal() -> None:
    """It is the sum of the signals, so matching with it would fail silently."""
    torch.manual_seed(0)
    with mounting():
        sums, bias = (signal_matching(build_case([message(net, hidden=True)], bounded=True)) for net in (Attends(), Branches()))
    assert "signal" in sums.layout.shapes and "signal" not in bias.layout.shapes


class Around(nn.Module):
    """A net with paths around its last linear layers: a residual block, a gate, or channel attention."""

    def __init__(self, kind: str, before: bool) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Tanh(), nn.Conv2d(4, 4, 3, 2, 1), nn.Tanh())
        self.between = nn.Linear(16, 16) if before else nn.Identity()
        size = 4 if kind == "attention" else 16
        self.a, self.b = nn.Linear(size, 12), nn.Linear(12, size)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.kind == "attention":
            x = x * self.b(self.a(x.mean((2, 3))).tanh()).sigmoid()[:, :, None, None]
        x = self.between(x.flatten(1))
        if self.kind != "attention":
            hidden = self.b(self.a(x).tanh())
            x = x + hidden if self.kind == "residual" else x * hidden.sigmoid()
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize(("kind", "before"), [("residual", True), ("residual", False), ("gate", True), ("attention", False)])
def test_a_layer_around_which_a_path_leads_gives_no_closed_form(kind: str, before: bool) -> None:
    """Only a layer that all paths go through gives a closed form."""
    torch.manual_seed(0)
    with mounting():
        objective = signal_matching(build_case([message(Around(kind, before), hidden=True)], bounded=True))
    assert ("signal" in objective.layout.shapes) == (not before)
    if before:
        losses = [objective(torch.tensor([0]), image.clamp(1e-4, 1 - 1e-4).logit().reshape(1, -1))[0] for image in IMAGES[:2]]
        assert float(losses[0]) < 1e-6 and float(losses[1]) > 0.1, "of the image behind it, and of another"


def test_the_signal_behind_a_residual_convolution_is_an_unknown() -> None:
    class Adds(nn.Module):
        def __init__(self, around: bool) -> None:
            super().__init__()
            self.around, self.first, self.second = around, nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).tanh()
            logits: Tensor = self.head((self.second(x).tanh() + (x if self.around else 0.0)).flatten(1))
            return logits

    torch.manual_seed(0)
    with mounting():
        plain, adds = (signal_matching(build_case([message(Adds(skip), hidden=True)], bounded=True)) for skip in (False, True))
    assert "signal" in adds.layout.shapes and "signal" not in plain.layout.shapes
