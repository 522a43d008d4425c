"""LPIPS is computed where its weights are, and says what is missing where they are not; it never downloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedpriv.attacks.scoring import perceptual
from fedpriv.attacks.scoring.perceptual import Missing, lpips
from fedpriv.attacks.scoring.scores import score


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty hub cache, and no way to fill it."""

    def caught(*arguments: object, **named: object) -> None:
        raise AssertionError("tried to download")

    monkeypatch.setattr(torch.hub, "download_url_to_file", caught)
    before = torch.hub.get_dir()
    torch.hub.set_dir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    yield tmp_path
    torch.hub.set_dir(before)


def test_it_says_what_is_missing(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(2, 3, 32, 32)
    monkeypatch.setattr(perceptual, "find_spec", lambda name: object())
    with pytest.raises(Missing, match="hub cache: alexnet-owt"):
        lpips(images, images)
    monkeypatch.setattr(perceptual, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="package torchmetrics"):
        lpips(images, images)
    with pytest.raises(Missing, match="colour images of 32x32"):
        lpips(images[:, :1], images[:, :1])
    result = score(images, images)
    assert result.lpips is None and result.lpips_missing == "LPIPS needs the package torchmetrics"


@pytest.mark.slow
def test_with_weights_at_hand_it_is_computed(hub: Path) -> None:
    """Random weights for AlexNet, which measure nothing, but the distance has its form."""
    pytest.importorskip("torchmetrics")
    from torchvision.models import alexnet

    torch.manual_seed(0)
    torch.save(alexnet(weights=None).state_dict(), hub / "checkpoints" / "alexnet-owt-7be5be79.pth")
    true = torch.rand(3, 3, 32, 32)
    output = true.clone()
    output[1] = (output[1] + 0.05).clamp(0, 1)
    output[2] = 1 - output[2]
    result = score(output, true)
    assert result.lpips is not None and result.lpips_missing is None
    same, near, far = result.lpips.tolist()
    assert same == 0 and 0 < near < far
    torch.testing.assert_close(result.lpips[2:], lpips(output[2:], true[2:]))
