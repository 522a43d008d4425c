"""The look of all plots.

Colours are Okabe and Ito's, which suit colour-blind readers. Figures are drawn without pyplot, so no window system is needed
and no global state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072B2", "#D55E00"
PALETTE = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9a9a9a",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
}


def styled() -> AbstractContextManager[None]:
    """A block in which figures get the common style."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def save(draw: Callable[[Figure], None], path: Path, size: tuple[float, float]) -> None:
    """Write the figure that ``draw`` makes, of ``size`` inches and in the common style, as a PNG with 150 dpi."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def short(names: Sequence[str], longest: int) -> list[str]:
    """Names as they may be shown, with an ellipsis at the end of long ones."""
    return [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in map(printable, names)]
