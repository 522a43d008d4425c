"""The picture of a frontier: accuracy against leakage, the area of a disc being the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.plots.curves import PALETTE, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
_AREA = 420.0
"""Of the largest disc, in points squared."""


def draw(trades: Sequence[Found], path: Path, target: Sequence[str], chosen: str | None) -> None:
    """Draw the points of the grid's seed.

    Args:
        trades: as in ``frontier.json``; one whose accuracy or leakage is not known is left out.
        path: the PNG to write.
        target: conditions, for the title.
        chosen: the label of the point that was chosen.
    """
    first = min((one["seed"] for one in trades), default=0)
    shown = [one for one in trades if one["seed"] == first and None not in (one["accuracy"], one["recovered"])]
    methods = list(dict.fromkeys(one["method"] for one in shown))

    def figure(made: Figure) -> None:
        axes = made.add_subplot()
        largest = max((one["bytes"] for one in shown), default=1) or 1
        for one in shown:
            colour = PALETTE[methods.index(one["method"]) % len(PALETTE)]
            x, y = 100 * one["recovered"], 100 * one["accuracy"]
            alpha = 0.35 if one["at_chance"] else 1.0
            for bounds, along in ((one["recovered_interval"], "x"), (one["interval"], "y")):
                if bounds:
                    low, high = (100 * bound for bound in bounds)
                    line = ([low, high], [y, y]) if along == "x" else ([x, x], [low, high])
                    axes.plot(*line, color=colour, linewidth=1, alpha=0.45 * alpha)
            edge = "black" if one["label"] == chosen else colour
            axes.scatter(
                [x], [y], s=_AREA * one["bytes"] / largest + 18, color=colour, alpha=0.55 * alpha, edgecolors=edge,
                linewidths=2.4 if one["label"] == chosen else 1.2, zorder=3,
            )  # fmt: skip
            axes.annotate(one["defence"], (x, y), xytext=(9, 5), textcoords="offset points", fontsize=9, alpha=max(alpha, 0.6))
        best = sorted((one for one in shown if one["unbeaten"]), key=lambda one: one["recovered"])
        axes.plot(
            [100 * one["recovered"] for one in best],
            [100 * one["accuracy"] for one in best],
            "--",
            color="#777777",
            linewidth=1.3,
        )
        for number, method in enumerate(methods):
            axes.scatter([], [], s=60, color=PALETTE[number % len(PALETTE)], alpha=0.55, label=method)
        axes.plot([], [], "--", color="#777777", linewidth=1.3, label="beaten by none")
        axes.set_xlabel("samples recovered by the best attack, % (less is better)")
        axes.set_ylabel("accuracy, mean over clients, % (more is better)")
        axes.set_xlim(left=-3, right=max(105.0 if any(one["recovered"] > 0.8 for one in shown) else 50.0, 10.0))
        axes.set_title("Accuracy against leakage" + (f"; target {', '.join(target)}" if target else ""))
        axes.legend(loc="lower right", fontsize=10)

    save(figure, path, (10, 6.2))
