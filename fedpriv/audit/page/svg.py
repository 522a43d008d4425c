"""Plots as inline SVG with colours from the page's style sheet, so that they fit light mode, dark mode and print."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 480, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 16, 46
SERIES = 6
"""Number of line colours in the style sheet; further series are dashed."""


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linearly or by powers of ten; values outside are drawn at the border.

    Attributes:
        low, high: the values at the pixels ``start`` and ``end``.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round values in range: powers of ten, or steps of 1, 2 or 5 times one."""
        if self.log:
            low, high = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((high - low) / 6))
            return [10.0**exponent for exponent in range(low, high + 1, every)]
        size = _round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / size - 1e-9), math.floor(self.high / size + 1e-9)
        return [number * size for number in range(first, last + 1)]


def across(low: float, high: float, log: bool = False) -> Scale:
    """The horizontal axis of a plot."""
    return Scale(low, high, LEFT, WIDTH - RIGHT, log)


def upwards(low: float, high: float, log: bool = False) -> Scale:
    """The vertical axis of a plot."""
    return Scale(low, high, HEIGHT - BOTTOM, TOP, log)


def frame(x: Scale, y: Scale, titles: tuple[str, str], writes: tuple[Callable[[float], str], Callable[[float], str]]) -> Markup:
    """Grid, ticks and the two titles of a plot."""
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    parts = []
    for value in x.ticks():
        at = x(value)
        parts.append(Markup('<line class="grid" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>').format(at, TOP, bottom))
        parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(at, bottom + 17, writes[0](value)))
    for value in y.ticks():
        at = y(value)
        parts.append(Markup('<line class="grid" x1="{0}" y1="{2}" x2="{1}" y2="{2}"/>').format(LEFT, WIDTH - RIGHT, at))
        parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 7, at + 4, writes[1](value)))
    parts.append(Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(LEFT, TOP, bottom, WIDTH - RIGHT))
    titled = '<text class="title" x="{}" y="{}" text-anchor="middle">{}</text>'
    parts.append(Markup(titled).format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, titles[0]))
    turned = '<text class="title" transform="translate(14 {}) rotate(-90)" text-anchor="middle">{}</text>'
    parts.append(Markup(turned).format(middle, titles[1]))
    return Markup("").join(parts)


def line(points: Sequence[tuple[float, float]], x: Scale, y: Scale, style: str) -> Markup:
    """A series through ``points``, in pixels rounded to a tenth."""
    path = "L".join(f"{x(a)} {y(b)}" for a, b in points)
    return Markup('<path class="line {}" d="M{}"/>').format(style, path)


def style(index: int) -> str:
    """The class of the n-th series."""
    return f"s{index % SERIES}" + (" dashed" if index >= SERIES else "")


def svg(label: str, parts: Sequence[Markup], height: int = HEIGHT) -> Markup:
    """The SVG element; ``label`` describes it for screen readers."""
    whole = '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    return Markup(whole).format(WIDTH, height, label, Markup("").join(parts))


def _round_step(least: float) -> float:
    base = 10.0 ** math.floor(math.log10(least))
    return base * next(factor for factor in (1, 2, 5, 10) if factor * base >= least * (1 - 1e-9))
