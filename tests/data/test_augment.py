from __future__ import annotations

import torch

from fedpriv.data.augment import PADDING, crop_flip

IMAGES = torch.rand(64, 3, 12, 16, generator=torch.Generator().manual_seed(0))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_deterministic() -> None:
    first, again, other = (crop_flip(IMAGES, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == IMAGES.shape and first.is_contiguous()


def test_each_image_is_a_crop_of_its_own() -> None:
    """Against the plain definition: every output is one of the 9 x 9 x 2 crops of its padded input."""
    drawn = set()
    for image, out in zip(IMAGES, crop_flip(IMAGES, seeded(0)), strict=True):
        padded = torch.nn.functional.pad(image, (PADDING,) * 4)
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
