"""Plots of runs: accuracy over rounds and bytes, and the distribution of accuracy over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.evaluation.protocols import best, mean, worst_tenth
from fedpriv.plots.style import BLUE, ORANGE, PALETTE, save, short
from fedpriv.scores.catalogue import ACCURACY, Score
from fedpriv.tracking import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FURTHER = ("#882255", "#999933", "#332288", "#44AA99", "#AA4499", "#777777", "#DDCC77")
"""Tol's muted scheme, for series beyond :data:`PALETTE`. Line styles and markers differ, too, as so many colours look alike."""
LINES = ("-", "--", ":")  # by repetition of the palette
MARKERS = "os^DvPX*<>dph"
_CHARACTER = 0.092
"""Width of a character in a legend, in inches."""
_WIDE_CHARACTER = 0.125
"""The same for wrapping labels, which may have many wide characters."""

_MOST_NAMED, _LONGEST_NAME = 30, 30
"""Most clients whose bars are named, and the longest name that is not cut."""
_FEW_LINES, _SHORT = 6, 40
"""Most curves with labels of at most so many characters that a legend names; others are numbered, and named in a table."""


def learning_curve(records: Sequence[Record], path: Path, score: Score = ACCURACY) -> None:
    """Draw a run: accuracy (or another score) over the rounds with the clients' spread, and below it the training loss.

    Args:
        records: as :func:`fedpriv.tracking.read_records` returns them.
        path: the PNG (1500 pixels wide) to write.
    """
    losses = [(r["round"], r["metrics"]["train_loss"]) for r in records if r["metrics"].get("train_loss") is not None]

    def draw(figure: Figure) -> None:
        top, bottom = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        draw_score(top, records, score)
        if losses:
            x, y = zip(*losses, strict=True)
            bottom.plot(x, y, color=ORANGE, **_marks(x))
        elif all(_value(record, score) is None for record in records):
            bottom.set_xlim(0, 1)
        bottom.set_title("Training loss")
        bottom.set_ylabel("loss, mean over\nthe round's clients")
        if (finite := [value for _, value in losses if math.isfinite(value)]) and min(finite) >= 0 < max(finite):
            bottom.set_ylim(0, 1.08 * max(finite))
        bottom.set_xlabel("round")
        _whole_rounds(bottom)

    save(draw, path, (10, 6.4))


def draw_score(axes: Axes, records: Sequence[Record], score: Score = ACCURACY) -> None:
    """Draw a score of a run over its rounds, with the clients' spread and a linear probe's accuracy, onto axes."""
    evaluated = [(record["round"], value) for record in records if (value := _value(record, score)) is not None]
    probed: dict[float, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in record["metrics"].items():
            if name.startswith("probe/"):
                probed.setdefault(float(name.removeprefix("probe/")), []).append((record["round"], value))
    spread = [
        (record["round"], worst_tenth(clients, score), best(clients, score))
        for record in records
        if mean(clients := _clients(record, score)) is not None
    ]
    if spread:
        x, low, high = zip(*spread, strict=True)
        axes.fill_between(x, low, high, color=BLUE, alpha=0.16, linewidth=0, label="worst tenth to best client")
    rounds, values = [round for round, _ in evaluated], [value for _, value in evaluated]
    axes.plot(rounds, values, color=BLUE, label="mean over clients", **_marks(rounds))
    for (share, points), color in zip(probed.items(), PALETTE[1:], strict=False):
        axes.plot(*zip(*points, strict=True), color=color, label=f"linear probe, {share:.0%} of the labels", **_marks(points))
    _score_axis(axes, score)
    _limit(axes, score, 1.02)
    if evaluated or probed:
        axes.legend(loc="lower right" if score.higher_is_better or score.high == math.inf else "upper right")
    title = _capital(score.title)
    if evaluated:
        axes.set_title(f"{title}: {score.shown(values[-1])} after round {rounds[-1]}")
    else:
        axes.set_title(f"{title}: not measured" + (" but by linear probe" if probed else ""))


def per_client_score(values: Sequence[float | None], path: Path, score: Score = ACCURACY, names: Sequence[str] = ()) -> None:
    """Draw each client's accuracy, or another score, sorted, with the mean and the worst tenth marked.

    Of few clients, the bars have their names.

    Args:
        values: one per client; ``None`` for a client that was not evaluated.
        names: of the clients; none where they are numbers.
        path: the PNG (1500 pixels wide) to write.
    """
    from matplotlib.patches import Patch

    order = [(value, client) for client, value in enumerate(values) if value is not None]
    order.sort(key=lambda pair: score.merit(pair[0]))
    known = [value for value, _ in order]
    average, worst = mean(known), worst_tenth(known, score)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        tenth = max(1, len(known) // 10)  # as in worst_tenth
        gap = 0.82 if len(known) <= 100 else 1.0
        positions = range(1, len(known) + 1)
        axes.bar(positions, known, width=gap, color=[ORANGE] * tenth + [BLUE] * (len(known) - tenth), linewidth=0)
        if average is not None:
            line = axes.axhline(average, color="#222222", linewidth=1.6, linestyle="--", label=f"mean {score.shown(average)}")
            marks = [Patch(color=ORANGE, label=f"worst tenth: {score.shown(worst)} on average"), line]
            axes.legend(handles=marks, loc="lower right", bbox_to_anchor=(1.0, 0.985), ncols=2, borderaxespad=0)
        missing = len(values) - len(known)
        note = f" ({missing} not evaluated)" if missing else ""
        axes.set_title(f"{_capital(score.title)} of {len(known)} clients{note}")
        axes.set_xlabel("clients, from worst to best")
        if len(known) <= _MOST_NAMED:
            shown = short([names[client] if names else str(client) for _, client in order], _LONGEST_NAME)
            wide = sum(map(len, shown)) > 80
            axes.set_xticks(positions, shown, rotation=90 * wide, fontsize=10 if wide else 12, parse_math=False)
        _limit(axes, score, 1.0)
        axes.grid(axis="x", visible=False)
        axes.margins(x=0.01)
        _score_axis(axes, score)
        if len(known) > _MOST_NAMED:
            _whole_rounds(axes)

    save(draw, path, (10, 5))


def compare_curves(
    runs: Mapping[str, Sequence[Sequence[Record]]],
    path: Path,
    leaks: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    score: Score = ACCURACY,
) -> None:
    """Draw several runs side by side: accuracy (or another score) over rounds, over the bytes sent, and against leakage.

    The legend is in the order of the final scores. A run with a single evaluation is a hollow marker. Many curves, and those of
    long labels, are numbered in this order, and the legend is a table of numbers, labels and final scores.

    Args:
        runs: label -> the records of each run (each seed) with that label. For several seeds the line is the mean over the rounds
            that all of them evaluated, and the band spans from the lowest to the highest.
        path: the PNG to write, 1650 pixels wide, or 2400 with leakage.
        leaks: label -> (share of samples recovered, score) of each audited run; drawn for two or more.
    """
    audited = leaks if leaks is not None and sum(map(len, leaks.values())) > 1 else {}
    width = 16 if audited else 11
    shown = {
        label: fill(label + (f" ({len(group)} seeds)" if len(group) > 1 else ""), int((width - 1.2) / _WIDE_CHARACTER))
        for label, group in runs.items()
    }
    lines = [line for text in shown.values() for line in text.splitlines()]
    numbered = len(runs) > _FEW_LINES or max(map(len, runs), default=0) > _SHORT
    longest = max(map(len, lines), default=0) + len(f" (no {score.title})") + 4 * numbered
    columns = max(1, min(3, len(runs), int(width / (0.8 + _CHARACTER * longest))))

    title = _capital(score.title)

    def draw(figure: Figure) -> None:
        left, right, *third = figure.subplots(1, 3 if audited else 2, sharey=True)
        for index, (label, group) in enumerate(runs.items()):
            curves = [curve for records in group if (curve := _curve(records, score))]
            if not curves:
                left.plot([], [], label=f"{shown[label]} (no {score.title})", **_look(index, 0))
                continue
            common = sorted(set.intersection(*(set(curve) for curve in curves)))
            sent = [fmean(curve[number][0] for curve in curves) for number in common]
            by_round = [[curve[number][1] for curve in curves] for number in common]
            look = _look(index, len(common))
            for axes, x in (left, common), (right, sent):
                axes.plot(x, list(map(fmean, by_round)), label=shown[label], **look)
                if len(curves) > 1:
                    low, high = list(map(min, by_round)), list(map(max, by_round))
                    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        left.set_title(f"{title} by round")
        left.set_xlabel("round")
        _whole_rounds(left)
        right.set_title(f"{title} by communication")
        right.set_xlabel("bytes on the wire so far, both directions")
        _bytes_axis(right)
        _score_axis(left, score)
        _score_axis(right, score)
        right.set_ylabel("")
        for axes in third:
            for label, points in audited.items():
                look = _look(list(runs).index(label), len(points))
                share, reached = [100 * x for x, _ in points], [y for _, y in points]
                axes.plot(share, reached, look["marker"], color=look["color"], markersize=9)
            axes.set_title(f"{title} against leakage")
            axes.set_xlabel("recovered by an audit's best attack, %")
            axes.set_xlim(-4, 104)
        best_first = sorted(left.get_lines(), key=partial(_end, score), reverse=True)
        if numbered:
            numbers = {line.get_label(): number for number, line in enumerate(best_first, 1)}
            for axes in (left, right):
                _number(axes, numbers)
            for line in best_first:
                line.set_label(f"{numbers[line.get_label()]}  {line.get_label()}{_final(line, score)}")
        figure.legend(handles=best_first, loc="outside lower center", ncols=columns)

    crowded = len(runs) > len(PALETTE)
    save(draw, path, (width, (7 if crowded else 5) + 0.25 * (len(lines) // columns)))


def _value(record: Record, score: Score) -> float | None:
    value = record["metrics"].get(score.name)
    return mean(_clients(record, score)) if value is None else float(value)


def _curve(records: Sequence[Record], score: Score) -> dict[int, tuple[float, float]]:
    """Round -> (bytes so far, score), of the evaluated rounds."""
    return {record["round"]: (_bytes(record), value) for record in records if (value := _value(record, score)) is not None}


def _clients(record: Record, score: Score) -> list[float | None]:
    return list((record.get("per_client") or {}).get(score.name) or [])


def _bytes(record: Record) -> float:
    metrics = record["metrics"]
    return float(metrics.get("total_bytes_up", 0) + metrics.get("total_bytes_down", 0))


def _look(index: int, points: int) -> dict[str, Any]:
    """Style of curve number ``index``; neighbours mark different points, so that both are visible where they coincide."""
    colours = PALETTE + FURTHER
    look = {"color": colours[index % len(colours)], "marker": MARKERS[index % len(MARKERS)]}
    if points == 1:
        return look | {"linestyle": "none", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 2}
    line = LINES[index // len(PALETTE) % len(LINES)]
    every = max(2, points // 6)
    return look | {"linestyle": line, "markersize": 6, "markevery": (index % every, every)}


def _end(score: Score, line: Line2D) -> float:
    """How good the last value of a curve is; minus infinity if it has none."""
    heights = np.asarray(line.get_ydata(), dtype=float)
    return float(heights[-1] if score.higher_is_better else -heights[-1]) if len(heights) else -math.inf


def _final(line: Line2D, score: Score) -> str:
    """The last value of a curve, behind its label; empty if it has none."""
    return f": {score.shown(_last(line.get_ydata()))}" if len(np.asarray(line.get_ydata())) else ""


def _number(axes: Axes, numbers: Mapping[object, int]) -> None:
    """Write each curve's number at the height of its end, beside the numbers of curves that end as high.

    Args:
        numbers: by the curves' labels.
    """
    low, high = axes.get_ylim()
    apart, columns = (high - low) / 30, list[float]()  # the highest number of each column
    ends = [line for line in axes.get_lines() if len(np.asarray(line.get_xdata()))]
    for y, x, line in sorted(((_last(line.get_ydata()), _last(line.get_xdata()), line) for line in ends), key=lambda end: end[0]):
        column = next((at for at, top in enumerate(columns) if y - top >= apart), len(columns))
        columns[column : column + 1] = [y]
        text, where = str(numbers[line.get_label()]), (7 + 14 * column, 0)
        axes.annotate(text, (x, y), where, textcoords="offset points", va="center", fontsize=10, color=line.get_color())
    axes.margins(x=0.05 + 0.03 * len(columns))


def _last(values: object) -> float:
    return float(np.asarray(values, dtype=float)[-1])


def _marks(points: Sequence[Any]) -> dict[str, Any]:
    """Markers for few points; for many, a line alone."""
    return {"marker": "o", "markersize": 5} if len(points) <= 25 else {}


def _score_axis(axes: Axes, score: Score) -> None:
    if score.in_percent:
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.6g}%")  # as many decimals as needed
    axes.set_ylabel(f"{score.title} of clients" + (", %" if score.in_percent else ""))


def _limit(axes: Axes, score: Score, top: float) -> None:
    """Show the range of a score, as far as it has ends."""
    if math.isfinite(score.high):
        axes.set_ylim(top=top)
    if math.isfinite(score.low):
        axes.set_ylim(bottom=score.low)


def _capital(title: str) -> str:
    return title[0].upper() + title[1:]


def _whole_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _bytes_axis(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
