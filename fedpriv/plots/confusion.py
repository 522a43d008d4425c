"""The confusion matrix of a run's global model, as data and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.evaluation.protocols import global_summary, per_class
from fedpriv.plots.style import save, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedpriv.evaluation.protocols import Confusion

_MOST_COUNTS, _MOST_NUMBERS, _MOST_NAMES = 12, 20, 100
"""Most classes for which cells have counts below their shares, for which they have shares, and for which rows have names."""
_LONGEST_NAME = 40


def confusion_report(confusion: Confusion, classes: Sequence[str], round: int) -> dict[str, Any]:
    """Contents of ``confusion.json``: precision, recall, F1 (shares) and support (test samples) of each class, and the matrix.

    For many classes there is no matrix, but the ``pairs`` of classes that occur, by number: ``[true, predicted, samples]``.

    Args:
        confusion: number of samples ``(C, C)`` by true class (row) and predicted class (column).
        classes: the names of the C classes.
        round: after which the model was tested.
    """
    columns = {**per_class(confusion), "support": confusion.sum(axis=1)}
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return {
        "round": round,
        "classes": [{"name": name, **dict(zip(columns, row, strict=True))} for name, row in zip(classes, rows, strict=True)],
        **_cells(confusion),
    }


def _cells(confusion: Confusion) -> dict[str, Any]:
    if isinstance(confusion, np.ndarray):
        return {"confusion": confusion.tolist()}
    true, predicted = confusion.nonzero()
    samples = confusion[true, predicted]
    return {"pairs": np.stack([true, predicted, samples], axis=1).tolist()}


def draw_confusion(confusion: Confusion, classes: Sequence[str], path: Path) -> bool:
    """Draw a confusion matrix: a row per true class, coloured by the share of its samples that is predicted as each class.

    If there is room, cells show their share in percent and the number of samples, and rows and columns the class's name; where
    names are too long for columns, rows have name and number, and columns the number. A class without samples is a grey row.

    Args:
        confusion: as for :func:`confusion_report`.
        path: the PNG (1500 pixels wide) to write; it is not written if a cell would be smaller than a pixel.

    Returns:
        Whether it was drawn.
    """
    if not isinstance(confusion, np.ndarray):
        return False
    samples = confusion.sum(axis=1, keepdims=True)
    shares = np.ma.masked_array(confusion / np.maximum(samples, 1), np.broadcast_to(samples == 0, confusion.shape))

    def draw(figure: Figure) -> None:
        from matplotlib import colormaps
        from matplotlib.colors import PowerNorm
        from matplotlib.ticker import PercentFormatter

        axes = figure.subplots()
        # On a square-root scale, so that 1 % is visible.
        image = axes.imshow(
            shares, interpolation="nearest", norm=PowerNorm(0.5, 0, 1), cmap=colormaps["Blues"].with_extremes(bad="#ebebeb")
        )
        bar = figure.colorbar(image, ax=axes, shrink=0.72, ticks=(0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1))
        bar.set_label("% of the true class's test samples" + (" (number of samples)" if len(classes) <= _MOST_COUNTS else ""))
        bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=None))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        _name(axes, classes)
        if len(classes) <= _MOST_NUMBERS:
            _number(axes, shares, confusion)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        accuracy, f1 = np.trace(confusion) / max(1, confusion.sum()), global_summary(confusion)["global_f1_macro"]
        axes.set_title(f"Global model: accuracy {accuracy:.1%}, macro F1 {f1:.1%}")

    save(draw, path, (10, 8.8))
    return True


def _name(axes: Axes, classes: Sequence[str]) -> None:
    if len(classes) > _MOST_NAMES:
        return
    names = short(classes, _LONGEST_NAME)
    size = min(12.0, 420 / len(classes))  # the axes have some 500 points
    fit = len(classes) <= 12 and max(map(len, names)) * len(names) <= 72
    numbers = [str(number) for number in range(len(names))]
    rows = names if fit or names == numbers else [f"{name}  {number}" for name, number in zip(names, numbers, strict=True)]
    turned = 90 * (len(classes) > 30)
    # parse_math: a name such as "$5" is no formula.
    axes.set_xticks(range(len(classes)), names if fit else numbers, fontsize=size, rotation=turned, parse_math=False)
    axes.set_yticks(range(len(classes)), rows, fontsize=size, parse_math=False)
    axes.tick_params(length=2 if len(classes) > _MOST_NUMBERS else 4)


def _number(axes: Axes, shares: np.ma.MaskedArray[Any, Any], counts: np.ndarray[Any, Any]) -> None:
    size = min(13.0, 220 / len(shares))
    for (row, column), share in np.ndenumerate(shares.filled(0)):
        if share:
            text = "<1 %" if share < 0.01 else f"{100 * share:.0f} %"
            if len(shares) <= _MOST_COUNTS:
                text += f"\n({counts[row, column]:,})"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if share > 0.4 else "#222222")
