"""The frozen VGG16: what is trained and sent is the top alone. ImageNet's weights are not needed: others stand in for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torchvision.models import vgg16

from fedpriv.errors import UsageError
from fedpriv.models import build_model, describe
from fedpriv.models.architectures.vgg16_frozen import convolutions


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random weights in place of ImageNet's."""
    convolutions.cache_clear()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = vgg16(weights=None, num_classes=1)
    monkeypatch.setattr("torchvision.models.vgg16", lambda weights: drawn)
    yield
    convolutions.cache_clear()


@pytest.mark.parametrize(("classes", "parameters"), [(10, 33_482), (100, 39_332)])
def test_only_the_top_is_state(classes: int, parameters: int) -> None:
    net = build_model("vgg16_frozen", (3, 32, 32), classes, projection=None)
    assert sum(role.parameters for role in describe(net)) == parameters
    assert list(net.state_dict()) == ["encoder.fc1.weight", "encoder.fc1.bias", "head.weight", "head.bias"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_weights")
def test_gradients_skip_the_frozen_convolutions() -> None:
    net = build_model("vgg16_frozen", (3, 32, 32), 10, projection=None)
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    net(images).logits.sum().backward()
    assert images.grad is not None and images.grad.any()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert not any(parameter.requires_grad for parameter in convolutions("cpu").parameters())
    assert net.encode(images).shape == (2, 64)
    pooled = convolutions("cpu")(images)
    assert pooled.shape == (2, 512, 1, 1) and convolutions("cpu") is convolutions("cpu")


def test_without_weights_it_says_where_they_belong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(weights: object) -> None:
        raise OSError("no network")

    convolutions.cache_clear()
    monkeypatch.setattr("torchvision.models.vgg16", missing)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    net = build_model("vgg16_frozen", (3, 32, 32), 10, projection=None)
    with pytest.raises(UsageError, match=r"no network.*vgg16-397923af\.pth into .*checkpoints"):
        net(torch.rand(1, 3, 32, 32))


def test_grey_images_are_refused() -> None:
    with pytest.raises(UsageError, match="3 channels, not 1"):
        build_model("vgg16_frozen", (1, 32, 32), 10, projection=None)
