"""The picture of a frontier: accuracy against leakage; discs have the bytes as area, labels the AUC of membership attacks."""

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
_MIDDLE = 60.0
"""Labels of points to the right of it stand to their left."""
_BESIDE, _LINE = 4.0, 2.8
"""How far labels stand from their points, and from each other, in percent."""


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
                    low, high = (100 * min(1.0, max(0.0, bound)) for bound in bounds)
                    line = ([low, high], [y, y]) if along == "x" else ([x, x], [low, high])
                    axes.plot(*line, color=colour, linewidth=1, alpha=0.45 * alpha)
            edge = "black" if one["pareto_optimal"] else colour
            axes.scatter(
                [x], [y], s=_AREA * one["bytes"] / largest + 18, color=colour, alpha=0.55 * alpha, edgecolors=edge,
                linewidths=2.6 if one["label"] == chosen else 1.2, zorder=3,
            )  # fmt: skip
        for x, y, height, text in _labels(shown, chosen):
            to, side = (x - _BESIDE, "right") if x > _MIDDLE else (x + _BESIDE, "left")
            axes.annotate(
                text, (x, y), (to, height), fontsize=9, horizontalalignment=side, verticalalignment="center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": "#777777", "relpos": (float(side == "right"), 0.5)},
                bbox={"facecolor": "white", "alpha": 0.4, "edgecolor": "none", "pad": 0.5},  # intervals lie below
            )  # fmt: skip
        for number, method in enumerate(methods):
            axes.scatter([], [], s=60, color=PALETTE[number % len(PALETTE)], alpha=0.55, label=method)
        axes.scatter([], [], s=60, color="white", edgecolors="black", label="black edge: Pareto-optimal")
        if any(one["at_chance"] for one in shown):
            axes.scatter([], [], s=60, color="#777777", alpha=0.2, label="faint: no better than guessing")
        axes.set_xlabel("samples recovered by the best attack, % (less is better)")
        axes.set_ylabel("accuracy, mean over clients, % (more is better)")
        axes.set_xlim(-4, 104)
        axes.set_ylim(-4, 104)
        axes.set_title("Accuracy against leakage" + (f"; target {', '.join(target)}" if target else ""))
        made.legend(loc="outside lower center", fontsize=10, ncols=len(methods) + 2)

    save(figure, path, (10, 6.4))


def _labels(shown: Sequence[Found], chosen: str | None) -> list[tuple[float, float, float, str]]:
    """Of each point: where it lies, at what height its label stands, and what that says.

    Labels on a side of the picture stand below each other, by :data:`_LINE` at least.
    """
    found = []
    for left in (True, False):
        side = [one for one in shown if (100 * one["recovered"] > _MIDDLE) == left]
        height = float("inf")
        for one in sorted(side, key=lambda one: -one["accuracy"]):
            x, y = 100 * one["recovered"], 100 * one["accuracy"]
            height = min(y, height - _LINE)
            text = str(one["defence"]).replace("none", "no defence")
            if (auc := one["leakage"].get("membership_auc")) is not None:
                text += f", AUC {auc:.2f}"
            text += " (chosen)" * (one["label"] == chosen)
            found.append((x, y, height, text))
    return found
