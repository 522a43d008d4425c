from __future__ import annotations

import torch

from fedpriv.data.augmentation.by_kornia import flip_jitter_rotate
from fedpriv.data.pools import Images, Paired, Ready
from fedpriv.samples import Pairs

CPU = torch.device("cpu")
PIXELS = torch.randint(0, 256, (9, 3, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
IDS = torch.randint(0, 30, (9, 6), dtype=torch.int32)


def test_images_are_normalised_when_they_are_picked() -> None:
    pool = Images(PIXELS, MEAN, STD, CPU)
    index = torch.tensor([8, 1])
    mean, std = (torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(pool.pick(index), ((PIXELS[index].double() / 255 - mean) / std).float(), rtol=1e-5, atol=1e-5)
    assert len(pool) == 9 and torch.equal(pool.pick(slice(2, 4)), pool.pick(torch.tensor([2, 3])))


def test_token_ids_are_kept_in_half_the_room_and_picked_as_indices() -> None:
    pool = Ready(IDS, CPU)
    for picked in (pool.pick(torch.tensor([3, 0])), pool.pick(slice(0, 2))):
        assert isinstance(picked, torch.Tensor) and picked.dtype == torch.int64
    assert torch.equal(pool.pick(torch.tensor([3, 0])), IDS[[3, 0]].long())  # type: ignore[arg-type]
    features = Ready(torch.randn(9, 4), CPU).pick(slice(0, 9))
    assert isinstance(features, torch.Tensor) and features.dtype == torch.float32


def test_a_pair_is_of_one_sample() -> None:
    pool = Paired(Images(PIXELS, MEAN, STD, CPU), Ready(IDS, CPU))
    index = torch.tensor([5, 5, 0])
    picked = pool.pick(index)
    assert isinstance(picked, Pairs) and len(pool) == 9
    assert torch.equal(picked.image, Images(PIXELS, MEAN, STD, CPU).pick(index))  # type: ignore[arg-type]
    assert torch.equal(picked.text, IDS[index].long())  # type: ignore[arg-type]


def test_flip_jitter_rotate_draws_from_its_generator_alone_and_for_each_sample() -> None:
    change = flip_jitter_rotate(MEAN, STD)
    images = Images(PIXELS, MEAN, STD, CPU).pick(torch.zeros(6, dtype=torch.int64))
    before = torch.get_rng_state()
    one, other, third = (change(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, other) and not torch.equal(one, third)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(image.flatten().tolist()) for image in one}) > 1  # the same image, changed differently
    assert one.shape == images.shape and one.isfinite().all()
    grey = flip_jitter_rotate((0.5,), (0.2,))(torch.zeros(2, 1, 8, 8), torch.Generator().manual_seed(0))
    assert grey.shape == (2, 1, 8, 8)
