from __future__ import annotations

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from fedpriv.data.augmentation.augment import PADDING, TURN, augmentation, crop_flip, crop_flip_rotate, turned

IMAGES = torch.rand(64, 3, 12, 16, generator=torch.Generator().manual_seed(0))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_deterministic() -> None:
    first, again, other = (crop_flip(IMAGES, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == IMAGES.shape and first.is_contiguous()


@pytest.mark.parametrize(("name", "mode"), [("crop_flip", "constant"), ("reflect_crop_flip", "reflect")])
def test_each_image_is_a_crop_of_its_own(name: str, mode: str) -> None:
    """Against the plain definition: every output is one of the 9 x 9 x 2 crops of its padded input."""
    drawn = set()
    augment = augmentation(name)
    assert augment is not None
    for image, out in zip(IMAGES, augment(IMAGES, seeded(0)), strict=True):
        padded = torch.nn.functional.pad(image, (PADDING,) * 4, mode)
        found = [
            (y, x, flip)
            for y in range(9)
            for x in range(9)
            for flip in (False, True)
            if torch.equal(padded[:, y : y + 12, x : x + 16].flip(2) if flip else padded[:, y : y + 12, x : x + 16], out)
        ]
        assert len(found) == 1
        drawn.update(found)
    assert len(drawn) > 40


def test_draws_are_uniform() -> None:
    # One bright pixel tells where each crop began, and another whether it was flipped.
    images = torch.zeros(20000, 1, 12, 16)
    images[:, :, 6, 4] = 1
    images[:, :, 6, 5] = 2
    out = crop_flip(images, seeded(0))[:, 0]
    rows = (out == 1).flatten(1).int().argmax(1) // 16
    left, right = ((out == value).flatten(1).int().argmax(1) % 16 for value in (1, 2))
    assert torch.bincount(rows, minlength=11)[2:11].float().div(20000).sub(1 / 9).abs().max() < 0.01
    assert abs((right < left).float().mean() - 0.5) < 0.02


def test_the_input_is_left_alone() -> None:
    before = IMAGES.clone()
    crop_flip(IMAGES, seeded(0))
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize("side", [(32, 32), (12, 16)])
def test_a_update_is_torchvisions(side: tuple[int, int]) -> None:
    images = torch.rand(6, 3, *side, generator=seeded(3))
    angles = torch.tensor([-15.0, -7.3, 0.0, 1.0, 11.9, 90.0])
    ours = turned(images, angles)
    assert torch.equal(ours[2], images[2])
    for image, angle, out in zip(images, angles.tolist(), ours, strict=True):
        theirs = rotate(image, angle, InterpolationMode.NEAREST)
        # A pixel half-way between two may go to either.
        assert ((theirs - out).abs() > 1e-6).float().mean() < 0.01


@pytest.mark.slow
def test_updates_are_small_and_each_image_has_its_own() -> None:
    """A bright bar to the right of the centre, after the crop 13 to 22 pixels from it; by how far it moves, the angle."""
    images = torch.zeros(4000, 1, 65, 65)
    images[:, :, 32, 49:51] = 1
    out = crop_flip_rotate(images, seeded(0))
    straight = crop_flip(images, seeded(0))
    assert out.shape == images.shape
    assert (out != straight).flatten(1).any(1).float().mean() > 0.8
    rows = torch.arange(65)[None, :, None]
    middle = [(image.squeeze(1) * rows).sum((1, 2)) / image.sum((1, 2, 3)) for image in (out, straight)]
    moved = middle[0] - middle[1]
    bound = 23 * torch.sin(torch.deg2rad(torch.tensor(TURN))) + 1
    assert moved.abs().max() <= bound, "no further than fifteen degrees take it"
    assert moved.min() < -3 and moved.max() > 3
