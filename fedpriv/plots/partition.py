"""The picture of a partition: number of samples by client and class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import UsageError
from fedpriv.plots.style import BLUE, save, short
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 1000
_MOST_NAMED, _MOST_CLASSES, _LONGEST_NAME = 30, 100, 32
"""Most clients and most classes that are named, and the longest name that is not cut."""


def draw_partition(
    counts: NDArray[np.int64], classes: Sequence[str], title: str, path: Path, clients: Sequence[str] = ()
) -> None:
    """Write a PNG (1500 pixels wide): the clients' sizes above the class counts ``(n, C)`` as a heat map, empty cells white.

    Args:
        clients: their names; none where they are numbers.

    Raises:
        UsageError: the file cannot be written.
    """
    n, many = len(counts), len(classes) > _MOST_CLASSES
    height = 5.2 if len(classes) <= 12 else 6.4 if len(classes) <= 24 or many else 2.6 + 0.16 * len(classes)

    def draw(figure: Figure) -> None:
        from matplotlib import colormaps
        from matplotlib.colors import ListedColormap
        from matplotlib.ticker import MaxNLocator

        sizes, heat = figure.subplots(2, sharex=True, height_ratios=(1, max(2.6, 0.75 * height - 1)))
        sizes.bar(range(n), counts.sum(axis=1), width=0.82 if n <= 100 else 1.0, color=BLUE, linewidth=0)
        sizes.set_ylabel("samples")
        sizes.set_title(printable(title), parse_math=False)
        sizes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        sizes.grid(axis="x", visible=False)
        sizes.tick_params(axis="x", length=0)
        # Neighbours share a column where there are more clients than pixels; drawing cells at random would lose classes.
        together = -(-n // _COLUMNS)
        starts = np.arange(0, n, together)
        cells = np.add.reduceat(counts, starts, axis=0).T / np.diff([*starts, n])
        blues = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1.0, 256)))
        image = heat.imshow(
            np.ma.masked_equal(cells, 0), aspect="auto", interpolation="nearest",
            extent=(-0.5, n - 0.5, len(classes) - 0.5, -0.5),
            cmap=blues.with_extremes(bad="white"), vmin=0, vmax=max(1, cells.max()),
        )  # fmt: skip
        shade = "samples of the class" + (f", mean of {together} clients" if together > 1 else "")
        figure.colorbar(image, ax=heat, label=shade, pad=0.01, ticks=MaxNLocator(nbins=5, integer=True))
        heat.grid(visible=False)
        heat.spines[:].set_visible(True)
        heat.set_xlabel("client")
        if n <= _MOST_NAMED and clients:
            wide = sum(map(len, clients)) > 80
            heat.set_xticks(range(n), short(clients, _LONGEST_NAME), rotation=90 * wide, parse_math=False)
        else:
            heat.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
        heat.set_xlim(-0.5, n - 0.5)
        if many:
            heat.set_ylabel("class")
            heat.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        else:
            size = 12 if len(classes) <= 24 else 8
            names = short(classes, _LONGEST_NAME)
            heat.set_yticks(range(len(classes)), names, fontsize=size, parse_math=False)  # "$5" is no formula

    try:
        save(draw, path, (10, height))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
