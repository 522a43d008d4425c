"""Pictures of reconstructions beside the originals."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

SHOWN = 8
"""Images in a row."""
SIDE, GAP = 96, 6
"""``SIDE``: target width of an image in pixels (at least half is reached); ``GAP``: pixels between images."""
FONT = 14
"""Pixels of the names."""


def grid(rows: Mapping[str, Tensor]) -> bytes:
    """A PNG with a row of images per name; images ``(n, C, H, W)`` in [0, 1], at most :data:`SHOWN` of them."""
    columns = min(SHOWN, *(len(images) for images in rows.values()))
    pixels = mosaic([images[:columns] for images in rows.values()])
    font, high = ImageFont.load_default(FONT), len(pixels) // len(rows)
    beside = GAP + round(max(map(font.getlength, rows)))
    picture = Image.new("RGB", (beside + GAP + pixels.shape[1], len(pixels) + GAP), "white")
    picture.paste(Image.fromarray((255 * pixels).round().to(torch.uint8).numpy()), (beside + GAP, GAP))
    draw, png = ImageDraw.Draw(picture), io.BytesIO()
    for row, name in enumerate(rows):
        draw.text((beside, GAP + row * high + (high - GAP) // 2), name, "black", font, anchor="rm")
    picture.save(png, "PNG")
    return png.getvalue()


def mosaic(rows: list[Tensor]) -> Tensor:
    """Rows of equally many images ``(n, C, H, W)`` as one, ``(height, width, 3)``, on white."""
    images = torch.stack([row.cpu().float() for row in rows]).nan_to_num(1.0).clamp(0, 1)
    if images.shape[2] != 3:
        images = images[:, :, :1].expand(-1, -1, 3, -1, -1)
    times = max(1, SIDE // max(images.shape[-2:]))
    larger = images.repeat_interleave(times, -2).repeat_interleave(times, -1)
    return F.pad(larger, (0, GAP, 0, GAP), value=1.0).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
