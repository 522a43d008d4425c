"""LeNets with tanh: their sizes, and the layer that Keras applies pixel by pixel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpriv.models import build_model, describe


@pytest.mark.parametrize(("name", "parameters"), [("lenet5_tanh", 61_706), ("lenet_released", 164_116)])
def test_sizes_of_the_card(name: str, parameters: int) -> None:
    net = build_model(name, (1, 28, 28), 10, projection=None)
    assert sum(role.parameters for role in describe(net)) == parameters


def test_released_lenet_has_one_dense_layer_for_all_pixels() -> None:
    encoder = build_model("lenet_released", (1, 28, 28), 10, projection=None).encoder
    assert isinstance(encoder, nn.Sequential)
    pixels = torch.randn(2, 6, 4, 4)
    dense = nn.functional.linear(pixels.movedim(1, -1), encoder.fc1.weight.flatten(1), encoder.fc1.bias).movedim(-1, 1)
    torch.testing.assert_close(encoder.fc1(pixels), dense)
    sizes = [encoder.fc1.weight.numel() + encoder.fc1.bias.numel(), encoder.fc2.weight.numel() + encoder.fc2.bias.numel()]
    assert sizes == [840, 161_364]


@pytest.mark.parametrize("name", ["lenet5_tanh", "lenet_released"])
@pytest.mark.parametrize("side", [16, 28, 32])
def test_they_fit_other_sizes_and_begin_as_keras_does(name: str, side: int) -> None:
    net = build_model(name, (3, side, side), 7, projection=None)
    assert net(torch.rand(2, 3, side, side)).logits.shape == (2, 7)
    for parameter in net.parameters():
        if parameter.ndim == 1:
            assert not parameter.any()
        else:
            fan = parameter[0].numel() + parameter.shape[0] * parameter[0, 0].numel()
            assert float(parameter.detach().abs().max()) <= (6 / fan) ** 0.5
