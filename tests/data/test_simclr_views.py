"""The views of SimCLR: random per sample, decided by the generator, and images still."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedpriv.data.augmentation.augment import augmentation
from fedpriv.data.augmentation.by_kornia import _views

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, channels: int = 3, height: int = 12, width: int = 16) -> Tensor:
    drawn = torch.rand(count, channels, height, width, generator=seeded(0))
    return (drawn - _column(MEAN, channels)) / _column(STD, channels)


def _column(values: tuple[float, ...], channels: int) -> Tensor:
    return torch.tensor((*values, *values)[:channels]).view(1, -1, 1, 1)


def changed(given: Tensor, seed: int, name: str = "simclr") -> Tensor:
    channels = given.shape[1]
    augment = augmentation(name, (*MEAN, *MEAN)[:channels], (*STD, *STD)[:channels])
    assert augment is not None
    return augment(given, seeded(seed))


@pytest.mark.parametrize("name", ["simclr", "simclr_sharp"])
def test_the_generator_alone_decides(name: str) -> None:
    given = images(16)
    first = changed(given, 1, name)
    torch.rand(5)  # the global generator has moved on
    before = torch.get_rng_state()
    again, other = (changed(given, seed, name) for seed in (1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before), "and is left as it was"
    assert torch.equal(given, images(16)), "the input too"


def test_a_generator_that_moves_on_gives_another_view() -> None:
    given, drawn = images(16), seeded(0)
    augment = augmentation("simclr", MEAN, STD)
    assert augment is not None
    assert not torch.equal(augment(given, drawn), augment(given, drawn))


def test_each_sample_has_draws_of_its_own() -> None:
    out = changed(images(1).repeat(40, 1, 1, 1), 0)
    apart = torch.cdist(out.flatten(1), out.flatten(1)) + torch.eye(40)
    assert (apart > 1e-3).all()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 7), (28, 28), (32, 16), (1, 1), (2, 9)])
def test_images_of_any_kind_stay_images(channels: int, height: int, width: int) -> None:
    given = images(24, channels, height, width)
    out = changed(given, 3)
    assert out.shape == given.shape and out.dtype == given.dtype and torch.isfinite(out).all()
    colours = out * _column(STD, channels) + _column(MEAN, channels)
    assert colours.min() >= -1e-5 and colours.max() <= 1 + 1e-5


def test_doubles_stay_doubles() -> None:
    assert changed(images(4).double(), 0).dtype == torch.float64


def test_how_often_each_change_happens() -> None:
    """Of 4,000 images: a fifth are grey; those neither jittered nor grey keep their colours, those not blurred their edges."""
    given = torch.full((4000, 3, 8, 8), 0.5)
    given[:, 0], given[:, 1], given[:, 2] = 0.6, 0.4, 0.3
    out = _apply(given)
    grey = ((out[:, 0] - out[:, 1]).abs() + (out[:, 0] - out[:, 2]).abs()).amax((1, 2)) < 1e-4
    assert abs(float(grey.float().mean()) - 0.2) < 0.02
    kept = (out - given).abs().amax((1, 2, 3)) < 1e-5
    assert abs(float(kept.float().mean()) - 0.2 * 0.8) < 0.02, "a flat image shows neither crop nor blur"


def test_flips_and_blurs_happen_to_half() -> None:
    """A ramp is turned round by a flip; noise loses its roughness by a blur, each image by a width of its own."""
    ramp = torch.linspace(0.2, 0.8, 16).expand(4000, 1, 16, 16)
    out = _apply(ramp)
    falls = out[:, 0, 8, 4] > out[:, 0, 8, 11]
    assert abs(float(falls.float().mean()) - 0.5) < 0.03
    noise = torch.rand(4000, 1, 16, 16, generator=seeded(2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        left = _views((1, 16, 16), True)[-1](noise).var((1, 2, 3)) / noise.var((1, 2, 3))  # type: ignore[index]
    blurred = left < 0.99
    # A width under 0.2 pixels, one in twenty, changes nothing that one would see.
    assert abs(float(blurred.float().mean()) - 0.5 * 0.95) < 0.03
    # 1 / (4 pi sigma^2) of white noise is left, or half of it at 0.4 pixels and 2 % at 2 pixels.
    assert 0.005 < float(left.min()) < 0.05 and float(left[blurred].std()) > 0.2


def _apply(given: Tensor, blur: bool = True) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out: Tensor = _views(tuple(given.shape[1:]), blur)(given)
        return out


def test_crops_keep_a_fifth_or_more() -> None:
    """On a ramp, the range of a crop is its width: no less than sqrt(0.2 * 3 / 4) of the image."""
    ramp = torch.linspace(0, 1, 64).expand(500, 1, 64, 64)
    crop = _views((1, 64, 64), False)[0]  # type: ignore[index]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = crop(ramp)
    width = out.amax((1, 2, 3)) - out.amin((1, 2, 3))
    assert width.min() > 0.36 and width.max() <= 1.0 and width.std() > 0.1
