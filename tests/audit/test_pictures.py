"""A picture of reconstructions shows every image at its place, with the whole name of its row."""

from __future__ import annotations

import io

import torch
from PIL import Image

from fedpriv.audit.images.pictures import GAP, SHOWN, SIDE, grid, mosaic


def test_every_image_stands_at_its_place() -> None:
    rows = [torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    pixels, times, step = mosaic(rows), SIDE // 8, SIDE + GAP
    assert pixels.shape == (2 * step, 3 * step, 3)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            part = pixels[row * step :, column * step :][: SIDE + 1, : SIDE + 1]
            assert torch.equal(part[:-1:times, :-1:times].movedim(2, 0), image.expand(3, 8, 8))
            assert (part[-1] == 1).all() and (part[:, -1] == 1).all(), "white between two"


def test_colours_stay_and_what_is_no_number_is_white() -> None:
    image = torch.rand(1, 3, 200, 100, generator=torch.Generator().manual_seed(0))
    image[0, :, 0, 0] = torch.nan
    pixels = mosaic([image])
    assert pixels.shape == (200 + GAP, 100 + GAP, 3) and (pixels[0, 0] == 1).all()
    assert torch.equal(pixels[1:200, :100], image[0].movedim(0, 2)[1:])


def test_names_stand_beside_the_images() -> None:
    def size(name: str, images: int) -> tuple[int, int]:
        return Image.open(io.BytesIO(grid({"original": torch.rand(images, 1, 8, 8), name: torch.rand(images, 1, 8, 8)}))).size

    (short, high), (long, same) = size("dlg", 2), size("an attack with a name that is long", 2)
    assert long > short + 100 and high == same > 200
    assert size("dlg", SHOWN + 3) == size("dlg", SHOWN)
