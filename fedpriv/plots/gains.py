"""Box plots of the clients' gains over training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.plots.style import BLUE, ORANGE, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def client_gains(gains: Mapping[str, Sequence[float]], alone: str, path: Path) -> None:
    """Draw a box for each method: the middle half of the clients, their median, and whiskers from the 5th to the 95th percentile.

    Args:
        gains: label -> each client's accuracy less that of training alone, in [-1, 1].
        alone: the label of the runs in which clients train alone.
        path: the PNG to write, 1500 pixels wide.
    """
    from matplotlib.ticker import FuncFormatter

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        better = [f"{label}\n{sum(gain > 0 for gain in values) / len(values):.0%} gain" for label, values in gains.items()]
        middle = {"color": ORANGE, "linewidth": 2.2}
        box = {"facecolor": BLUE, "alpha": 0.3, "linewidth": 0}
        axes.boxplot(
            [list(values) for values in gains.values()],
            orientation="horizontal",
            whis=(5, 95),
            widths=0.6,
            tick_labels=better,
            patch_artist=True,
            boxprops=box,
            medianprops=middle,
            flierprops={"marker": ".", "markersize": 4, "markeredgecolor": "#777777"},
        )
        axes.axvline(0, color="#222222", linewidth=1.6, linestyle="--")
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.0f}" if value else "0"))
        axes.set_title(f"What each client gains over training alone ({alone})")
        axes.set_xlabel("difference in accuracy, percentage points")

    save(draw, path, (10, 1.8 + 0.75 * len(gains)))
