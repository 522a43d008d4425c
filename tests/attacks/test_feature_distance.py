"""The feature distance of EfficientNet-Lite0: its arithmetic on a net that stands in, and what it measures with the real one."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from fedpriv.attacks.scoring import feature_distance as module
from fedpriv.attacks.scoring.feature_distance import NEEDED, STAGES, feature_distance
from fedpriv.attacks.scoring.perceptual import Missing
from fedpriv.attacks.scoring.scores import score

installed = pytest.mark.extra("perceptual")


class StandIn(nn.Module):
    """Sixteen small blocks, the interface of the package's net."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(16))
        self.fed: list[Tensor] = []

    def extract_features(self, x: Tensor) -> Tensor:
        self.fed.append(x)
        for block in self._blocks:
            x = block(x)
        return x


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    torch.manual_seed(0)
    output = StandIn()
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(module, "_net", lambda: output)
    return output


def test_by_its_definition(net: StandIn) -> None:
    """One minus the cosine of each place's features, by another formula."""
    output, true = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)

    def stages(x: Tensor) -> list[Tensor]:
        seen = []
        for block in net._blocks:
            x = block(x)
            seen.append(x)
        return [seen[number] for number in STAGES]

    pairs = zip(stages((255 * output - 127) / 128), stages((255 * true - 127) / 128), strict=True)
    expected = torch.stack([(1 - F.cosine_similarity(a, b)).mean((1, 2)) for a, b in pairs]).mean(0)
    torch.testing.assert_close(feature_distance(output, true), expected)
    assert not any(block._forward_hooks for block in net._blocks)


def test_grey_images_of_any_size_are_enlarged(net: StandIn) -> None:
    digits = torch.rand(40, 1, 8, 8)  # more than go through the net at once
    assert feature_distance(digits, digits).tolist() == [0.0] * 40
    assert {fed.shape[1:] for fed in net.fed} == {(3, 64, 64)}
    feature_distance(torch.rand(1, 3, 70, 65), torch.rand(1, 3, 70, 65))
    assert net.fed[-1].shape == (1, 3, 70, 65)


def test_without_the_packages_it_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == NEEDED[1] else object())
    images = torch.rand(2, 1, 8, 8)
    with pytest.raises(Missing, match="needs the extra perceptual"):
        feature_distance(images, images)
    with pytest.raises(Missing, match="grey or RGB images, not 2 channels"):
        feature_distance(images.expand(-1, 2, -1, -1), images.expand(-1, 2, -1, -1))
    result = score(images, images)
    assert result.feature_distance is None and "extra perceptual" in str(result.feature_distance_missing)


def digits() -> Tensor:
    return torch.tensor(load_digits().images[:20] / 16).float()[:, None]


def photographs() -> Tensor:
    """Parts of two photographs, 48x48."""
    whole = torch.stack([torch.tensor(image) for image in load_sample_images().images]).permute(0, 3, 1, 2) / 255
    return torch.cat([whole[:, :, top : top + 192, left : left + 192] for top, left in ((100, 50), (200, 300))])[..., ::4, ::4]


@installed
@pytest.mark.parametrize("images", [digits(), photographs()], ids=["digits", "photographs"])
def test_it_grows_with_the_damage(images: Tensor) -> None:
    """Of every image, with noise and with blur; the next image is farther than slight noise, and a grey one farther than both."""
    draw = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    noisy = torch.stack([feature_distance((images + scale * draw).clamp(0, 1), images) for scale in (0.02, 0.05, 0.1, 0.2)])
    blurred = torch.stack([feature_distance(gaussian_blur(images, [7, 7], [sigma]), images) for sigma in (0.4, 0.6, 0.8, 1.2)])
    assert not feature_distance(images, images).any()
    for damaged in (noisy, blurred):
        assert (damaged[0] > 0).all() and (damaged.diff(dim=0) > 0).all()
    other = feature_distance(images.roll(1, 0), images)
    assert (other > noisy[1]).all() and other.median() > noisy[2].median()
    assert (feature_distance(torch.full_like(images, 0.5), images) > other).all()


@installed
def test_the_score_has_it() -> None:
    images = digits()[:2]
    result = score(images + 0.1, images)
    assert result.feature_distance is not None and result.feature_distance_missing is None
    torch.testing.assert_close(result.feature_distance, feature_distance((images + 0.1).clamp(0, 1), images))
