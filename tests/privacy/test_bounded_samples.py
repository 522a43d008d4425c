"""No sample changes a private sum by more than the bound: whatever its gradient is, and whatever the net does with a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.interfaces import phase
from fedpriv.models.net import ROLES, Net
from fedpriv.models.registry import build_model
from fedpriv.models.state import changed_by_data
from fedpriv.objectives.cross_entropy import cross_entropy
from fedpriv.privacy.ghost import GhostGradients, check_layers
from fedpriv.privacy.per_sample import PerSampleGradients
from fedpriv.privacy.plan import _check_apart

WAYS = (GhostGradients, PerSampleGradients)


def net_of(encoder: nn.Module, width: int, shape: tuple[int, ...] = (1, 8, 8)) -> Net:
    head = nn.Linear(width, 4)
    net = Net(encoder, nn.Identity(), None, head, input_shape=shape, feature_dim=width, projection_dim=width, classes=4)
    return net.train()


def sums(net: Net, x: Tensor, y: Tensor, way: Any, clip: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """The sum as a row, losses and norms."""
    parameters = dict(net.named_parameters())
    sums = way(net, parameters, {}, phase(*ROLES, epochs=1), cross_entropy, from_features=False, clip=clip)(x, y, {})
    return torch.cat([part.flatten() for part in sums[0].values()]), sums[1], sums[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [torch.inf, torch.nan, 1e30])
def test_a_sample_without_a_finite_gradient_is_a_blank(way: Any, value: float) -> None:
    """Such as one that a server's weights send beyond all numbers; the upload must not show that it was there."""
    torch.manual_seed(0)
    net = build_model("lenet5", (1, 16, 16), 4)
    x, y = torch.rand(5, 1, 16, 16), torch.randint(0, 4, (5,))
    x[2] = value
    rest = torch.tensor([0, 1, 3, 4])
    total, losses, norms = sums(net, x, y, way)
    torch.testing.assert_close(total, sums(net, x[rest], y[rest], way)[0], rtol=1e-5, atol=1e-7)
    assert len(losses) == len(norms) == 5 and not norms[2].isfinite() and norms[rest].isfinite().all()
    alone = sums(net, x[2:3], y[2:3], way)[0]
    assert not alone.any() and alone.numel() == total.numel()


def hidden_from_ghosts() -> Net:
    """Weights that a server makes up: the first layer's gradient of class 3 cancels, unless each term is scaled first."""
    net = build_model("mlp2", (1, 8, 8), 10, projection=None)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        named = dict(net.named_parameters())
        named["encoder.fc1.bias"][0] = 2.0**-100  # unit 0 is just active
        named["encoder.fc2.weight"][:3, 0] = 2.0**60
        named["encoder.fc2.bias"][:3] = 1.0
        named["head.weight"][3, :3] = torch.tensor([3.0, 7.0, -10.0])
        named["head.bias"][1] = 200.0
    return net


def test_adversarial_weights_do_not_exceed_the_clipping_bound() -> None:
    """Per-sample clipping scales the gradient whose norm it took; ghost clipping takes two passes, and rounding parts them."""
    torch.manual_seed(0)
    net, x, y = hidden_from_ghosts(), torch.rand(10, 1, 8, 8), torch.tensor([3, 1, 0, 2, 4, 5, 6, 7, 8, 9])
    check_layers(net)
    added = {way: (sums(net, x, y, way, 1.0)[0] - sums(net, x[1:], y[1:], way, 1.0)[0]).norm() for way in WAYS}
    assert added[PerSampleGradients] == pytest.approx(1.0, rel=1e-5)
    assert added[GhostGradients] > 1e9, "so clients that require an epsilon refuse it, and the statement names the condition"


class Gate(nn.Module):
    """One weight in two places, the second of which counts for nothing at first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gate = nn.Linear(64, 64), Scale()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.linear(x.flatten(1)))
        return hidden + self.gate(F.linear(hidden, self.linear.weight))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.by * x


class Mixed(nn.Module):
    """A net in which the samples of a batch meet."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        scale = {"largest": x.abs().max(), "deviation": x.std(0) + 0.1, "constant": x.detach().abs().max()}[self.how]
        return torch.relu(self.linear(x / scale))


class Dropped(nn.Module):
    """Dropout that is no layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(torch.relu(self.linear(x.flatten(1))), training=self.training)


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_ghost_clipping_refuses_other_padding_than_zeros(mode: Any) -> None:
    net = net_of(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode=mode), nn.ReLU(), nn.Flatten()), 256)
    with pytest.raises(UsageError, match=rf"encoder.0 pads by {mode}, and Opacus by zeros\)$"):
        check_layers(net)


@pytest.mark.parametrize("how", ["largest", "deviation", "constant"])
def test_ghost_clipping_refuses_samples_that_meet(how: str) -> None:
    with pytest.raises(UsageError, match="its outputs for a sample depend on the other samples of the batch"):
        check_layers(net_of(Mixed(how), 16))


class MixedInTests(Mixed):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x.flatten(1))) if self.training else super().forward(x)


@pytest.mark.parametrize("clipping", ["per_sample", "ghost"])
@pytest.mark.parametrize("build", [Mixed, MixedInTests])
def test_samples_that_meet_in_evaluation_mode_are_refused(build: type[Mixed], clipping: str) -> None:
    """Features of a frozen encoder are computed so, in batches: one sample would move the gradients of the others."""
    config = RunConfig.model_validate({"privacy": {"level": "sample", "noise": 1.0, "clipping": clipping}})
    with pytest.raises(UsageError, match="in evaluation mode, the net's outputs for a sample depend on the other samples"):
        _check_apart(config, [phase(*ROLES, epochs=1)], net_of(build("largest"), 16))


def test_ghost_clipping_refuses_interaction_behind_many_layers() -> None:
    """Small weights lose a signal on the way, and large ones let it overflow."""
    torch.manual_seed(0)
    deep = [layer for _ in range(50) for layer in (nn.Linear(64, 64), nn.ReLU())]
    with pytest.raises(UsageError, match="depend on the other samples"):
        check_layers(net_of(nn.Sequential(Mixed("constant"), nn.Linear(16, 64), *deep), 64))


class Vast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (1e30 * self.linear(x.flatten(1))) ** 2
        return y


def test_ghost_clipping_refuses_what_it_cannot_check() -> None:
    with pytest.raises(UsageError, match=r"that of encoder\.linear\.bias is not finite on two random samples"):
        check_layers(net_of(Vast(), 16))


def test_ghost_clipping_refuses_a_tied_weight_initially_zero() -> None:
    torch.manual_seed(0)
    with pytest.raises(UsageError, match=r"that of encoder\.linear\.weight differs from that of each sample alone"):
        check_layers(net_of(Gate(), 64))


@pytest.mark.parametrize("encoder", [Dropped, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(), nn.Tanh())])
def test_ghost_clipping_takes_dropout(encoder: Any) -> None:
    check_layers(net_of(encoder(), 16))


def test_norms_of_sequences_do_not_cancel() -> None:
    """Of 64 equal tokens whose output gradients add up to little."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return (self.linear(x[:, 0]) * signs[:, None]).sum(1)

    torch.manual_seed(0)
    signs = 1e4 * torch.randn(8)
    signs[-1] = 1e-3 - signs[:-1].sum()
    net, x, y = net_of(Tokens(), 8), torch.ones(3, 1, 8, 8), torch.tensor([0, 1, 2])
    (_, _, by_layers), (_, _, one_by_one) = (sums(net, x, y, way) for way in WAYS)
    torch.testing.assert_close(by_layers, one_by_one, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize(
    ("layer", "changed"),
    [
        (nn.InstanceNorm2d(1, track_running_stats=True), "encoder.0.running_mean"),
        (nn.InstanceNorm2d(1), None),
        (nn.GroupNorm(1, 1), None),
    ],
)
def test_what_the_data_change_without_training_is_found(layer: nn.Module, changed: str | None) -> None:
    net = net_of(nn.Sequential(layer, nn.Flatten()), 64)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    assert next(iter(changed_by_data(net)), None) == changed
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
