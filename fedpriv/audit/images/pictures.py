"""Pictures of reconstructions beside the originals."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

SHOWN = 8
"""Images in a row."""
SIDE, GAP = 96, 6
"""``SIDE``: target width of an image in pixels (at least half is reached); ``GAP``: pixels between images."""


def grid(rows: Mapping[str, Tensor]) -> bytes:
    """A PNG with a row of images per name; images ``(n, C, H, W)`` in [0, 1], at most :data:`SHOWN` of them."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(SHOWN, *(len(images) for images in rows.values()))
    png, pixels = io.BytesIO(), mosaic([images[:columns] for images in rows.values()])
    high = pixels.shape[0] / len(rows)
    figure = Figure(figsize=(1.1 * columns, 1.1 * len(rows)))
    with mpl.rc_context({"font.size": 10}):
        axes = figure.add_axes((0, 0, 1, 1))  # one for all: each would take longer to draw than its image
        axes.imshow(pixels.numpy())
        axes.set_xticks([])
        axes.set_yticks([(row + 0.5) * high for row in range(len(rows))], list(rows))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.savefig(png, dpi=100, format="png", bbox_inches="tight", pad_inches=0.05)  # the names stand outside
    return png.getvalue()


def mosaic(rows: list[Tensor]) -> Tensor:
    """Rows of equally many images ``(n, C, H, W)`` as one, ``(height, width, 3)``, on white."""
    images = torch.stack([row.cpu().float() for row in rows]).nan_to_num(1.0).clamp(0, 1)
    if images.shape[2] != 3:
        images = images[:, :, :1].expand(-1, -1, 3, -1, -1)
    times = max(1, SIDE // max(images.shape[-2:]))
    larger = images.repeat_interleave(times, -2).repeat_interleave(times, -1)
    return F.pad(larger, (0, GAP, 0, GAP), value=1.0).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
