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
Write = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """A map of values to pixels, linear or by powers of ten; values outside are drawn at the border.

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


def element(tag: str, text: object = None, /, **attributes: object) -> Markup:
    """An SVG element. In names of attributes, a last underscore is dropped (``class_``), and others become hyphens."""
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    written = Markup("").join(Markup(' {}="{}"').format(names[name], value) for name, value in attributes.items())
    return Markup("<{0}{1}/>" if text is None else "<{0}{1}>{2}</{0}>").format(tag, written, text)


def frame(x: Scale, y: Scale, titles: tuple[str, str], writes: tuple[Write, Write]) -> Markup:
    """Grid, ticks and the two titles of a plot."""
    right, bottom, parts = WIDTH - RIGHT, HEIGHT - BOTTOM, list[Markup]()
    for value in x.ticks():
        at = x(value)
        parts.append(element("line", class_="grid", x1=at, y1=TOP, x2=at, y2=bottom))
        parts.append(element("text", writes[0](value), x=at, y=bottom + 17, text_anchor="middle"))
    for value in y.ticks():
        at = y(value)
        parts.append(element("line", class_="grid", x1=LEFT, y1=at, x2=right, y2=at))
        parts.append(element("text", writes[1](value), x=LEFT - 7, y=at + 4, text_anchor="end"))
    parts.append(element("path", class_="axis", d=f"M{LEFT} {TOP}V{bottom}H{right}"))
    parts.append(element("text", titles[0], class_="title", x=(LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle"))
    turned = f"translate(14 {(TOP + bottom) / 2}) rotate(-90)"
    parts.append(element("text", titles[1], class_="title", transform=turned, text_anchor="middle"))
    return Markup("").join(parts)


def line(points: Sequence[tuple[float, float]], x: Scale, y: Scale, style: str) -> Markup:
    """A series through ``points``, in pixels rounded to a tenth."""
    return element("path", class_=f"line {style}", d="M" + "L".join(f"{x(a)} {y(b)}" for a, b in points))


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
