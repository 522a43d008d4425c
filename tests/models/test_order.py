"""Layers are counted as a forward pass uses them, on the way to the logits, not as the net defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedpriv.errors import UsageError
from fedpriv.models.net import Net
from fedpriv.models.order import order_of
from fedpriv.models.registry import build_model
from fedpriv.models.user_net import name_of
from fedpriv.parameters import layer_of
from fedpriv.simulation.simulation import Simulation


class Backwards(nn.Module):
    """Its layers are defined from the last to the first; one of them is left out."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(9, classes)
        self.fc2 = nn.Linear(12, 9)
        self.idle = nn.Linear(9, 9)
        self.fc1 = nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.fc2(self.fc1(x.flatten(1)).tanh()).tanh())
        return logits


class Encoder(nn.Module):
    """Whatever may be between the input and the head, in another order than that of definition."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.aside = nn.Linear(8, 8)
        self.mixed = nn.MultiheadAttention(8, 2, batch_first=True)
        self.again = nn.Linear(8, 8)
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.normed = parametrizations.weight_norm(nn.Linear(64, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.again(self.normed(x.flatten(1)))
        h = self.recurrent(h[:, None])[0]
        h = self.frozen(self.mixed(h, h, h)[0][:, 0])
        self.seen = self.aside(h)  # and goes nowhere
        return self.again(h) * self.scale


def a_net() -> Net:
    torch.manual_seed(0)
    return Net(
        Encoder(), nn.Identity(), nn.Linear(8, 8), nn.Linear(8, 10),
        input_shape=(1, 8, 8), feature_dim=8, projection_dim=8, classes=10,
    )  # fmt: skip


def test_a_layer_counts_where_a_pass_uses_it_last() -> None:
    net = a_net()
    order = order_of(net)
    modules = list(dict.fromkeys(layer_of(name) for name in order.layers if name not in order.apart))
    assert modules == [
        "encoder.normed", "encoder.recurrent", "encoder.mixed", "encoder.mixed.out_proj", "encoder.again", "encoder", "head",
    ]  # fmt: skip
    assert order.linear == (
        "encoder.normed", "encoder.mixed.out_proj", "encoder.frozen", "encoder.again", "head",
    )  # fmt: skip


def test_what_the_logits_do_not_depend_on_is_no_layer() -> None:
    order = order_of(a_net())
    aside = ["encoder.unused", "encoder.aside.weight", "encoder.aside.bias", "predictor.weight", "predictor.bias"]
    assert sorted(order.apart) == sorted(aside) == sorted(order.layers[: len(aside)])


def test_the_net_is_left_as_it_is() -> None:
    net = a_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    learns, modes = {name: p.requires_grad for name, p in net.named_parameters()}, [module.training for module in net.modules()]
    order_of(net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert learns == {name: p.requires_grad for name, p in net.named_parameters()}
    assert modes == [module.training for module in net.modules()] and not hasattr(net.encoder, "seen")


@pytest.mark.parametrize("name", ["mlp", "resnet9_narrow", "moon_cnn", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_nets_that_define_their_layers_in_order(name: str) -> None:
    """What a run hides and corrects there is the same for good."""
    net = build_model(name, (1, 8, 8) if name == "mlp" else (3, 32, 32), 10, 16)
    order = order_of(net)
    assert order.layers == tuple(name for name, _ in net.named_parameters()) and not order.apart
    assert order.linear == tuple(name for name, module in net.named_modules() if isinstance(module, nn.Linear))


NETS: list[tuple[dict[str, Any], str]] = [
    ({"model.name": name_of(Backwards), "model.projection": None}, "encoder.fc2"),
    ({"model.predictor": 5}, "projector.fc2"),
    ({"model.head_on": "features"}, "encoder.fc2"),
]
"""Options of a net, and its last layer but one."""


@pytest.mark.parametrize(("options", "before"), NETS, ids=["own", "predictor", "head_on"])
def test_the_last_two_layers_of_a_run(simulate: Callable[..., Simulation], options: dict[str, Any], before: str) -> None:
    expected = {f"{layer}.{what}" for layer in (before, "head") for what in ("weight", "bias")}
    corrected = simulate("fedpvr", play=False, **options).state.memory
    assert {name.removeprefix("statistic.variate/") for name in corrected} == expected
    aggregation: Any = simulate("feddual", play=False, **options).federation.method.aggregation
    assert set(aggregation.dynamic) == expected
    masked = simulate("fedavg", play=False, **{"wire.transforms": [{"name": "mask", "last": 2}]}, **options).federation
    assert set(masked.agreement.space.names) - set(masked.agreement.sent_names) == expected


def test_more_layers_than_count_are_refused(simulate: Callable[..., Simulation]) -> None:
    own = NETS[0][0]
    with pytest.raises(UsageError, match=r"layers = 4: the net has 3 \(encoder.fc1, encoder.fc2, head\)"):
        simulate("fedpvr", play=False, **own, **{"method.layers": 4})
    with pytest.raises(UsageError, match=r"the net has 3 fully connected layers \(encoder.fc1, encoder.fc2, head\)"):
        simulate("fedavg", play=False, **own, **{"wire.transforms": [{"name": "mask", "last": 4}]})
