"""The pictures of a leakage experiment: shares of recovered images, errors, and the attackers' losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.attacks.scoring.scores import RECOVERED
from fedpriv.experiments.leakage.result import CellResult
from fedpriv.plots import BLUE, ORANGE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#9a9a9a"


def draw(cells: Mapping[str, CellResult], folder: Path, stem: str) -> dict[str, Path]:
    """Write the pictures of the cells with images; returns description -> file."""
    with_images = {label: result for label, result in cells.items() if result.mse}
    if not with_images:
        return {}
    files = {
        "share of images recovered, and the errors of all images, cell by cell": folder / f"{stem}.png",
        "the attackers' own losses": folder / f"{stem}-losses.png",
    }
    errors, losses = files.values()
    _draw_errors(with_images, errors)
    _draw_losses(with_images, losses)
    return files


def _draw_errors(cells: Mapping[str, CellResult], path: Path) -> None:
    def on(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
        for place, result in enumerate(cells.values()):
            rate = result.recovered()
            assert rate is not None
            colour = _colour(result)
            left.plot([rate.low, rate.high], [place, place], color=colour, linewidth=5, alpha=0.3)
            left.plot(rate.share, place, "o", color=colour)
            right.plot(result.mse, [place] * rate.n, "|", color=colour, markersize=9, alpha=0.6)
            right.plot(result.median_mse, place, "o", color="#222222", markersize=5)
        flat = sorted(max(cells.values(), key=lambda result: result.n).grey)
        right.axvspan(flat[len(flat) // 20], flat[-1 - len(flat) // 20], color=_GREY, alpha=0.25, linewidth=0, label="grey image")
        right.axvline(RECOVERED, color="#222222", linewidth=1, linestyle=":", label=f"MSE {RECOVERED:g}")
        left.set_yticks(range(len(cells)), list(cells), fontsize=9)
        left.set_ylim(len(cells) - 0.4, -0.6)
        left.set_xlim(-0.03, 1.03)
        left.set_title("Images recovered")
        left.set_xlabel("share, with 95 % Wilson interval")
        right.set_xscale("log")
        right.set_title("Error of each image")
        right.set_xlabel("mean squared error, clipped (dot: median)")
        figure.legend(loc="outside lower right", ncols=2, fontsize=9)

    save(on, path, (12, 2 + 0.24 * len(cells)))


def _draw_losses(cells: Mapping[str, CellResult], path: Path) -> None:
    by_attack: dict[str, list[CellResult]] = {}
    for result in cells.values():
        if result.curve["step"]:
            by_attack.setdefault(result.spec.attacker.name, []).append(result)

    def on(figure: Figure) -> None:
        panels = figure.subplots(1, max(1, len(by_attack)), squeeze=False)[0]
        for axes, (name, results) in zip(panels, by_attack.items(), strict=False):
            _draw_panel(axes, name, results)
        panels[0].set_ylabel("attacker's loss, median over images")
        panels[0].plot([], [], color=BLUE, label="most images recovered")
        panels[0].plot([], [], color=ORANGE, label="not")
        figure.legend(loc="outside lower center", ncols=2)

    save(on, path, (3.2 * max(1, len(by_attack)), 4.2))


def _draw_panel(axes: Axes, name: str, results: list[CellResult]) -> None:
    for result in results:
        axes.plot(result.curve["step"], result.curve["median"], color=_colour(result), linewidth=1.3, alpha=0.8)
    axes.set_yscale("log")
    axes.set_title(name)
    axes.set_xlabel("step recorded")


def _colour(result: CellResult) -> str:
    rate = result.recovered()
    return BLUE if rate and rate.share > 0.5 else ORANGE
