"""The picture of a frontier: a row for each point, the most accurate first, with accuracy and leakage on axes side by side.

Points of a frontier crowd in its corners, where marks and labels of a scatter plot hide each other; in rows they cannot.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.audit import formats
from fedpriv.audit.conditions import Condition
from fedpriv.frontier.decision import Trade
from fedpriv.frontier.result import Frontier
from fedpriv.frontier.show import meets_in_a_word
from fedpriv.plots import PALETTE, save
from fedpriv.scores.catalogue import ACCURACY, Score, score_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE, _GAP, _HEAD = 0.18, 0.14, 1.25
"""Heights, in inches: of a line of text, between rows, of what is above them."""
_METHOD, _DEFENCE, _FIRST = 0.1, 1.1, 3.2
"""Where the columns of text begin, and the first panel's column, in inches."""
_NUMBER, _PANEL, _SENT, _WORD = 0.68, 1.3, 0.9, 0.84
"""Widths of a panel's numbers, of its axis, and of the columns to the right."""
_LETTERS = 29
"""In a line of a defence."""
_BAND, _ALLOWED, _GREY = "#FFF1C2", "#DDEFE7", "#555555"
RANKED = "ranked"
"""In place of a measure: the score that the points are ranked by."""
_SHARES = ("recovered", "words", "cells", "attribute_advantage", "labels")
"""Measures that are shown in percent."""


@dataclass(frozen=True)
class Panel:
    """An axis of the picture.

    Attributes:
        low, high: the values at its ends.
        ticks: where it has numbers below it.
        left: where it begins, in inches.
        bound: the target's.
        score: of the panel of the score that the points are ranked by.
    """

    measure: str
    low: float
    high: float
    ticks: Sequence[float]
    left: float
    bound: Condition | None
    score: Score | None = None

    @property
    def more_is_better(self) -> bool:
        return self.score is not None and self.score.higher_is_better

    def __call__(self, value: float) -> float:
        """The place of a value, in inches; what lies outside is at the border."""
        return self.left + _PANEL * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)

    @property
    def in_percent(self) -> bool:
        return self.measure in _SHARES if self.score is None else self.score.in_percent

    @property
    def name(self) -> str:
        if self.score is not None:
            return self.score.title
        return self.measure.replace("_auc", " AUC").replace("_", " ")

    def written(self, value: float | None) -> str:
        if value is None:
            return formats.NOTHING
        if self.in_percent:
            return f"{100 * value:.1f}"
        is_plain = self.measure == "membership_auc" or self.score is not None
        return formats.plain(value) if is_plain else formats.short(value)

    def tick(self, value: float) -> str:
        return f"{100 * value if self.in_percent else value:.3g}"

    def limit(self) -> str:
        """The bound, such as ``≤ 0.6``; nothing without one."""
        return "" if self.bound is None else f"{self.bound.compare.replace('<=', '≤')} {self.tick(self.bound.bound)}"


def draw(frontier: Frontier, path: Path) -> None:
    """Draw all points into a PNG; without points, none is written."""
    rows = ordered(frontier)
    if not rows:
        return
    panels = _panels(rows, frontier.target)
    right = panels[-1].left + _PANEL
    width = right + _SENT + _WORD * (2 if frontier.target else 1) + 0.15
    notes = textwrap.wrap(" ".join(_notes(frontier)), round(14.4 * width))
    heights = [_LINE * len(_defence(row, frontier.seed)) + _GAP for row in rows]
    bottom = 0.55 + 0.19 * len(notes)
    end = _HEAD + sum(heights)
    whole = end + bottom
    methods = list(dict.fromkeys(row.method for row in rows))

    def draw_on(figure: Figure) -> None:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(whole, 0))  # inches, from the top left
        axes.set_axis_off()
        axes.text(_METHOD, 0.27, _title(panels), fontsize=13, fontweight="bold", va="center")
        _headings(axes, panels, right, bool(frontier.target))
        for panel in panels:
            _axis(axes, panel, _HEAD, end)
        for row, top, height in zip(rows, accumulate(heights, initial=_HEAD), heights, strict=False):
            if row.label == (frontier.chosen or frontier.nearest):
                axes.fill_between([0.04, width - 0.04], top, top + height, color=_BAND, linewidth=0, zorder=0)
            _row(axes, row, top + height / 2, panels, PALETTE[methods.index(row.method) % len(PALETTE)], frontier)
        for number, text in enumerate(notes):
            axes.text(_METHOD, end + 0.55 + 0.19 * number, text, fontsize=9, color=_GREY, va="center")

    save(draw_on, path, (width, whole))


def ordered(frontier: Frontier) -> list[Trade]:
    """The points of the grid's seed, the most accurate first, each followed by its runs on fresh seeds."""
    grid = sorted((trade for trade in frontier.trades if trade.seed == frontier.seed), key=lambda trade: -trade.merit)
    fresh = [trade for trade in frontier.trades if trade.seed != frontier.seed]
    return [row for trade in grid for row in (trade, *(again for again in fresh if again.label == trade.label))]


def only_by_bytes(trade: Trade, trades: Sequence[Trade]) -> bool:
    """Whether a Pareto-optimal point is better than another one of its seed in nothing but the bytes that it sends."""
    assert trade.ranked is not None and trade.recovered is not None, "it is Pareto-optimal"
    return any(
        other.merit >= trade.merit and other.recovered.share <= trade.recovered.share
        for other in trades
        if (other.seed == trade.seed and other.label != trade.label and not other.at_chance)
        and (other.ranked is not None and other.recovered is not None)
    )


def _panels(rows: Sequence[Trade], target: Sequence[Condition]) -> list[Panel]:
    """Accuracy, recovered, membership where it was attacked, and what else the target is about."""
    members = ["membership_auc"] if any(_value(row, "membership_auc") is not None for row in rows) else []
    names = dict.fromkeys([RANKED, "recovered", *members, *(condition.measure for condition in target)])
    panels = list[Panel]()
    for number, name in enumerate(names):
        left = _FIRST + (_NUMBER + _PANEL) * number + _NUMBER
        bound = min((each for each in target if each.measure == name), key=lambda each: each.bound, default=None)
        low, high, ticks = _range(name, rows, bound)
        panels.append(
            Panel(name, low, high, ticks, left, bound, score_named(rows[0].metric) if name == RANKED and rows else None)
        )
    return panels


def _range(name: str, rows: Sequence[Trade], bound: Condition | None) -> tuple[float, float, Sequence[float]]:
    if name in (RANKED, *_SHARES):
        return 0.0, 1.0, (0, 0.5, 1)
    values = [value for row in rows if (value := _value(row, name)) is not None]
    if name == "membership_auc":
        return (0.4, 1.0, (0.5, 0.75, 1)) if min(values, default=0.5) >= 0.4 else (0.0, 1.0, (0, 0.5, 1))
    largest = max(value for value in (*values, bound.bound if bound else 0.0, 0.0) if math.isfinite(value))
    high = 1.15 * largest or 1.0
    return 0.0, high, (0,)


def _value(trade: Trade, measure: str) -> float | None:
    if measure == RANKED:
        return trade.ranked
    if measure == "recovered":
        return None if trade.recovered is None else trade.recovered.share
    return trade.leakage.get(measure)


def _spans(trade: Trade, measure: str) -> Iterator[tuple[float, float, float]]:
    """Lines beside a mark: from, to, and their width."""
    value = _value(trade, measure)
    if measure == RANKED and trade.interval:
        yield (*trade.interval, 2.8)
    if measure == "recovered" and trade.recovered:
        yield trade.recovered.low, trade.recovered.high, 2.8
    most_open = None if trade.most_open is None else trade.most_open.rate.high
    widest = {"recovered": most_open, "membership_auc": trade.membership_open}.get(measure)
    if widest is not None and value is not None:
        yield value, widest, 1.0


def _headings(axes: Axes, panels: Sequence[Panel], right: float, with_target: bool) -> None:
    style: Any = {"fontsize": 10, "fontweight": "bold", "va": "bottom", "linespacing": 1.1}
    axes.text(_METHOD, _HEAD - 0.27, "method", **style)
    axes.text(_DEFENCE, _HEAD - 0.27, "defence", **style)
    for panel in panels:
        axes.text(panel.left + _PANEL / 2, _HEAD - 0.27, panel.name + ", %" * panel.in_percent, ha="center", **style)
        axes.text(
            panel.left + _PANEL / 2, _HEAD - 0.52, "more is better" if panel.more_is_better else "less is better",
            fontsize=9, color=_GREY, ha="center", va="bottom",
        )  # fmt: skip
    axes.text(right + _SENT - 0.02, _HEAD - 0.27, "sent", ha="right", **style)
    axes.text(right + _SENT + _WORD / 2, _HEAD - 0.27, "Pareto-\noptimal", ha="center", **style)
    if with_target:
        axes.text(right + _SENT + 1.5 * _WORD, _HEAD - 0.27, "meets\ntarget", ha="center", **style)


def _axis(axes: Axes, panel: Panel, top: float, end: float) -> None:
    left, right = panel(panel.low), panel(panel.high)
    for value in panel.ticks:
        axes.plot([panel(value)] * 2, [top, end], color="#dddddd", linewidth=0.8, zorder=1)
        axes.text(panel(value), end + 0.05, panel.tick(value), fontsize=9, color=_GREY, ha="center", va="top")
    axes.plot([left, right], [end, end], color="#9a9a9a", linewidth=0.8, zorder=1)
    if panel.bound is not None:
        at = panel(panel.bound.bound)
        axes.fill_between([left, at], top, end, color=_ALLOWED, linewidth=0, zorder=0.5)
        axes.plot([at, at], [top - 0.04, end], color="black", linewidth=1.1, linestyle=(0, (4, 2)), zorder=2)
        axes.text(at, top - 0.06, panel.limit(), fontsize=9, ha="center", va="bottom")


def _row(axes: Axes, trade: Trade, y: float, panels: Sequence[Panel], colour: str, frontier: Frontier) -> None:
    alpha = 0.4 if trade.at_chance else 1.0
    again = trade.seed != frontier.seed
    if not again:
        axes.text(_METHOD, y, trade.method, fontsize=10, color=colour, fontweight="bold", va="center")
    text = "\n".join(_defence(trade, frontier.seed))
    axes.text(_DEFENCE, y, text, fontsize=10, va="center", linespacing=1.15, color=_GREY if again else "black")
    for panel in panels:
        value = _value(trade, panel.measure)
        axes.text(panel.left - 0.12, y, panel.written(value), fontsize=10, ha="right", va="center")
        for low, high, width in _spans(trade, panel.measure):
            line = axes.plot([panel(low), panel(high)], [y, y], color=colour, linewidth=width, alpha=0.6 * alpha, zorder=3)
            line[0].set_solid_capstyle("butt")
        if value is not None:
            inside = panel.bound is None or panel.bound.allows(value)
            axes.scatter(
                [panel(value)], [y], s=32, facecolors=colour if inside else "white", edgecolors=colour, linewidths=1.5,
                alpha=alpha, zorder=4,
            )  # fmt: skip
    right = panels[-1].left + _PANEL
    axes.text(right + _SENT - 0.02, y, formats.size(trade.bytes), fontsize=10, ha="right", va="center")
    if trade.label in frontier.pareto_optimal and not again:
        word = "by bytes" if only_by_bytes(trade, frontier.trades) else "yes"
        axes.text(right + _SENT + _WORD / 2, y, word, fontsize=10, ha="center", va="center")
    if frontier.target:
        word = meets_in_a_word(frontier, trade)
        weight = "bold" if word == "chosen" else "normal"
        axes.text(right + _SENT + 1.5 * _WORD, y, word, fontsize=10, ha="center", va="center", fontweight=weight)


def _defence(trade: Trade, seed: int) -> list[str]:
    """The lines that name a row's defence; a part of several begins a line where it does not fit in."""
    if trade.seed != seed:
        return [f"the same, fresh seed {trade.seed}"]
    if trade.defence == "none":
        return ["no defence"]
    parts = trade.defence.replace("+", "\n+ ").split("\n")
    if sum(map(len, parts)) <= _LETTERS:
        return [" ".join(parts)]
    return [line for part in parts for line in textwrap.wrap(part, _LETTERS)]


def _title(panels: Sequence[Panel]) -> str:
    bounds = [panel for panel in panels if panel.bound is not None]
    target = " and ".join(f"{panel.name} {panel.limit()}{' %' * panel.in_percent}" for panel in bounds)
    title = next((panel.score.title for panel in panels if panel.score is not None), "accuracy")
    return f"{title[0].upper()}{title[1:]} against leakage" + (f"; target: {target}" if target else "")


def _notes(frontier: Frontier) -> Iterator[str]:
    """What the marks and the words mean, as sentences."""
    yield "Recovered: the largest share of samples that an attack recovered."
    title = frontier.score.title
    yield f"Thick lines: 95 % intervals, of {title} over the clients of one run."
    yield "Thin lines: the most that the intervals of all attacks that count, on however few samples, leave open."
    if frontier.target:
        most = "most accurate" if frontier.score is ACCURACY else f"best by {title}"
        best = f"the {most} that meets it, also on a fresh seed" if frontier.chosen else "what comes nearest; none meets it"
        yield f"Shaded: within the target; hollow marks are outside. Highlighted: {best}."
        if any(meets_in_a_word(frontier, trade) == "not known" for trade in frontier.trades):
            yield "Not known: the bounds hold of what was found, but more may leak."
    yield f"Pareto-optimal: no other of the seed is at least as good in {title}, recovered and bytes sent, and better in one;"
    yield f"“by bytes”: another is at least as good in {title} and recovered, but sends more."
    if any(trade.at_chance for trade in frontier.trades):
        yield "Faint: no better than guessing."
