"""Pictures of reconstructions beside the originals."""

from __future__ import annotations

import io
from collections.abc import Mapping

from torch import Tensor

SHOWN = 8
"""Images in a row."""


def grid(rows: Mapping[str, Tensor]) -> bytes:
    """A PNG with a row of images per name; images ``(n, C, H, W)`` in [0, 1], at most :data:`SHOWN` of them."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(SHOWN, *(len(images) for images in rows.values()))
    figure = Figure(figsize=(1.1 * columns + 1.6, 1.15 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    with mpl.rc_context({"font.size": 10}):
        for (name, images), line in zip(rows.items(), axes, strict=True):
            for image, axis in zip(images[:columns], line, strict=True):
                pixels = image.movedim(0, -1).cpu().numpy()
                axis.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)
                axis.set_xticks([])
                axis.set_yticks([])
            line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        made = io.BytesIO()
        figure.savefig(made, dpi=100, format="png")
    return made.getvalue()
