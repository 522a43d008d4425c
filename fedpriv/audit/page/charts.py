"""The plots of the audit's page. Each is ``None`` where there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit import formats
from fedpriv.audit.judge import images, members
from fedpriv.audit.page.svg import LEFT, RIGHT, TOP, WIDTH, Scale, across, frame, line, style, svg, upwards
from fedpriv.audit.results import AuditedRun, ImageTarget, MembershipOutcome

_CURVES = 8
"""More would hide each other."""
_LARGEST = 15  # radius in pixels of the run with most bytes


@dataclass(frozen=True)
class Chart:
    """A drawing and its legend.

    Attributes:
        keys: (class of the style sheet, name) of each series.
        about: what all series have in common, as a sentence.
    """

    drawing: Markup
    keys: Sequence[tuple[str, str]] = ()
    about: str = ""


@dataclass(frozen=True)
class _Disc:
    """A run of :func:`tradeoff`: its accuracy, and what was recovered."""

    run: AuditedRun
    accuracy: float
    rate: Rate


def drawable(run: AuditedRun) -> bool:
    """Whether :func:`tradeoff` can show a run."""
    return _disc(run) is not None


def _disc(run: AuditedRun) -> _Disc | None:
    best = images.best_of(run, "message")
    return None if run.cost.accuracy is None or best is None else _Disc(run, run.cost.accuracy, best.counted.rate)


def tradeoff(runs: Sequence[AuditedRun]) -> Chart | None:
    """Accuracy against the share of images recovered by the best attacker; the area of a disc is the bytes uploaded.

    Of a single run there is nothing to compare.
    """
    shown = {number: disc for number, run in enumerate(runs, 1) if (disc := _disc(run)) is not None}
    if len(shown) < 2:
        return None
    highest = min(1, 1.15 * max(one.rate.high for one in shown.values()))
    x = across(*_padded([one.accuracy for one in shown.values()]))
    y = upwards(-0.07 * highest, 1.03 * highest)  # room for whole discs at 0 and at 1
    most = max(one.run.cost.bytes_up for one in shown.values()) or 1
    # A disc of less than 3 pixels would be hard to see.
    radii = {number: max(3.0, round(_LARGEST * math.sqrt(one.run.cost.bytes_up / most), 1)) for number, one in shown.items()}
    places = {number: (x(one.accuracy), y(one.rate.share)) for number, one in shown.items()}
    origins = {one.run.name: places[number] for number, one in shown.items()}
    parts = [frame(x, y, ("accuracy", "images recovered, best attacker"), (_whole_percent(x), _whole_percent(y)))]
    for number, one in shown.items():
        if origin := origins.get(one.run.cost.against or ""):
            parts.append(Markup('<path class="cost" d="M{} {}L{} {}"/>').format(*origin, *places[number]))
    for number in sorted(shown, key=lambda n: -radii[n]):  # the small ones on top
        one, (left, top) = shown[number], places[number]
        kind = "defended" if one.run.defence else "undefended"
        label = f"{one.run.name}: accuracy {formats.percent(one.accuracy)}, "
        label += f"{formats.counted(one.rate)} images recovered, {formats.size(one.run.cost.bytes_up)} up"
        whisker = '<path class="whisker {}" d="M{} {}V{}"/>'
        parts.append(Markup(whisker).format(kind, left, y(one.rate.low), y(one.rate.high)))
        mark = '<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
        parts.append(Markup(mark).format(kind, left, top, radii[number], label))
    taken = [(*places[number], radii[number] + 6) for number in shown]
    for number in shown:
        left, top = _free(*places[number], radii[number], taken)
        taken.append((left, top, 8.0))
        parts.append(Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>').format(left, top + 4, number))
    label = "Accuracy against the share of images recovered from real messages, a disc per run; the figures are in the summary."
    keys = [("disc undefended", "no defence", False), ("disc defended", "with a defence", True)]
    there = {bool(one.run.defence) for one in shown.values()}
    return Chart(svg(label, parts), [(kind, name) for kind, name, defended in keys if defended in there])


def success(target: ImageTarget, limit: str) -> Chart | None:
    """Shares of images recovered with their intervals, a row per attacker and per baseline."""
    rows = [("attacker", one.attack, figures.success[limit]) for one, figures in images.ran(target)]
    rows += [("guess", name, guess.success[limit]) for name, guess in target.baselines.items()]
    if not rows:
        return None
    row, end = 36, WIDTH - RIGHT
    x, bottom = Scale(0, 1, 10, end), row * len(rows) + 6
    parts = [Markup('<line class="grid" x1="{0}" y1="4" x2="{0}" y2="{1}"/>').format(x(v), bottom) for v in x.ticks()]
    for number, (kind, name, rate) in enumerate(rows):
        base = row * number + 28
        spread = Markup('<path class="whisker {0}" d="M{1} {3}H{2}"/>').format(kind, x(rate.low), x(rate.high), base)
        dot = Markup('<circle class="{}" cx="{}" cy="{}" r="5"/>').format(kind, x(rate.share), base)
        text = Markup('<text x="10" y="{0}">{1}</text><text x="{2}" y="{0}" text-anchor="end">{3}</text>')
        parts += [text.format(base - 11, name, end, formats.counted(rate)), spread, dot]
    write = Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>')
    ends = {0.0: "start", 1.0: "end"}
    parts += [write.format(x(v), bottom + 17, ends.get(v, "middle"), f"{100 * v:.0f} %") for v in x.ticks()]
    label = "Share of images recovered by each attacker and each guess, with intervals; the figures are in the table of attempts."
    return Chart(svg(label, parts, bottom + 24), [("disc attacker", "attack"), ("disc guess", "guess without the message")])


def descent(target: ImageTarget) -> Chart | None:
    """Each attacker's loss over its steps, relative to its first value."""
    curves = [(one.attack, _relative(figures.curve)) for one, figures in images.ran(target)]
    series = [(name, points) for name, points in curves if len(points) > 1]
    if not series:
        return None
    steps, values = zip(*(point for _, points in series for point in points), strict=True)
    lowest, highest = math.floor(math.log10(max(min(values), 1e-12))), math.ceil(math.log10(max(values)))
    x, y = across(0, max(steps)), upwards(10.0**lowest, 10.0 ** max(highest, lowest + 1), log=True)
    parts = [frame(x, y, ("steps recorded (of Adam every 20th)", "loss, relative to the first"), (formats.short, _decade))]
    parts += [line(points, x, y, style(index)) for index, (_, points) in enumerate(series)]
    return Chart(svg("The attackers' losses over their steps.", parts), _keys([name for name, _ in series]))


def roc(attacks: Sequence[MembershipOutcome]) -> Chart | None:
    """The ROC of membership inference on logarithmic axes, which show low false-positive rates; of many attacks, the best."""
    drawn = [one for one in members.ran(attacks) if len(one.points.roc) > 1]
    if not drawn:
        return None
    best = sorted(range(len(drawn)), key=lambda i: drawn[i].auc, reverse=True)[:_CURVES]
    shown = [drawn[i] for i in sorted(best)]
    fewest = 10.0 ** -math.ceil(math.log10(max(10, *(one.points.non_members for one in shown))))
    x, y = across(fewest, 1, log=True), upwards(fewest, 1, log=True)
    titles = ("non-members falsely accused (FPR)", "members found (TPR)")
    parts = [frame(x, y, titles, (_decade, _decade))]
    parts.append(Markup('<path class="chance" d="M{} {}L{} {}"/>').format(x(fewest), y(fewest), x(1), y(1)))
    names, about = _told_apart([one.outcome for one in shown])
    parts += [line(one.points.roc, x, y, style(index)) for index, one in enumerate(shown)]
    label = "ROC of membership inference on logarithmic axes; area and rates are in the table."
    return Chart(svg(label, parts), [*_keys(names), ("chance", "guessing")], about)


def _told_apart(attacks: Sequence[MembershipOutcome]) -> tuple[list[str], str]:
    """Names of attacks, with their round and clients only where these differ; and a sentence with those that do not.

    How many shadow models an attack used is in the table.
    """
    facts = [(f"round {one.round}", _clients(one)) for one in attacks]
    rounds = {round for round, _ in facts}
    alone = len(rounds) == len(set(facts))  # a round says which clients
    names = [
        ", ".join([one.attack, *([round] if len(rounds) > 1 else []), *([] if alone else [clients])])
        for one, (round, clients) in zip(attacks, facts, strict=True)
    ]
    return names, f"All are of {', '.join(facts[0])}." if len(set(facts)) == 1 else ""


def _clients(one: MembershipOutcome) -> str:
    """``client 3``, or ``clients 0, 3``."""
    return f"client{'s' * (len(one.senders) > 1)} {', '.join(sender.short for sender in one.senders)}"


def _keys(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"stroke {style(index)}", name) for index, name in enumerate(names)]


def _relative(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """The curve relative to its first value, without points that a logarithmic axis cannot show."""
    usable = [(step, loss) for step, loss in curve if math.isfinite(loss) and loss > 0]
    return [(step, loss / usable[0][1]) for step, loss in usable]


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(0.15 * (high - low), 0.01)
    return max(0, low - margin), min(1 + margin, high + margin)


def _free(left: float, top: float, radius: float, taken: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """A position for a number beside a disc where it hides nothing; ``taken``: occupied centres with half their widths."""
    beside = radius + 9
    around = [(left + side * beside, top - 7 * up) for up in range(40) for side in (1, -1)]
    inside = [(a, b) for a, b in around if LEFT + 6 < a < WIDTH - RIGHT and b > TOP]
    return next((at for at in inside if all(abs(at[0] - a) >= half or abs(at[1] - b) >= half for a, b, half in taken)), around[0])


def _whole_percent(scale: Scale) -> Callable[[float], str]:
    ticks = scale.ticks()
    places = 0 if len(ticks) < 2 or ticks[1] - ticks[0] >= 0.0099 else 1
    return lambda value: f"{100 * value:.{places}f} %"


def _decade(value: float) -> str:
    return f"{value:g}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")
