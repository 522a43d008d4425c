"""The plots of the audit's page. Each is ``None`` where there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit import formats
from fedpriv.audit.judge import images, members
from fedpriv.audit.page.svg import LEFT, RIGHT, TOP, WIDTH, Scale, Write, across, element, frame, line, style, svg, upwards
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.images import ImageTarget
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.scores.catalogue import score_named

CURVES = 4
"""Most curves in a ROC plot; more would hide each other."""
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
    """A run in :func:`tradeoff`, with its accuracy (or what else it is ranked by) and what was recovered."""

    run: AuditedRun
    score: float
    rate: Rate


def _disc(run: AuditedRun) -> _Disc | None:
    best = images.best_of(run, "message")
    return None if run.cost.ranked is None or best is None else _Disc(run, run.cost.ranked, best.rate)


def drawable(run: AuditedRun) -> bool:
    """Whether :func:`tradeoff` can show a run."""
    return _disc(run) is not None


def tradeoff(runs: Sequence[AuditedRun]) -> Chart | None:
    """Accuracy, or what else the runs are ranked by, against the share of images recovered by the best attacker; the area of a
    disc is the bytes uploaded.

    Runs that are ranked by another score than the first are left out. ``None`` also for a single run, as there is nothing to
    compare.
    """
    discs = {number: disc for number, run in enumerate(runs, 1) if (disc := _disc(run)) is not None}
    metric = next((disc.run.cost.metric for disc in discs.values()), "accuracy")
    discs = {number: disc for number, disc in discs.items() if disc.run.cost.metric == metric}
    if len(discs) < 2:
        return None
    highest = min(1, 1.15 * max(disc.rate.high for disc in discs.values()))
    x = across(*_padded([disc.score for disc in discs.values()]))
    y = upwards(-0.07 * highest, 1.03 * highest)  # room for whole discs at 0 and at 1
    most = max(disc.run.cost.bytes_up for disc in discs.values()) or 1
    # A disc of less than 3 pixels would be hard to see.
    radii = {number: max(3.0, round(_LARGEST * math.sqrt(disc.run.cost.bytes_up / most), 1)) for number, disc in discs.items()}
    places = {number: (x(disc.score), y(disc.rate.share)) for number, disc in discs.items()}
    by_name = {disc.run.name: places[number] for number, disc in discs.items()}
    parts = [frame(x, y, (score_named(metric).title, "images recovered, best attacker"), (_whole_percent(x), _whole_percent(y)))]
    for number, disc in discs.items():
        if origin := by_name.get(disc.run.cost.against or ""):
            (left, top), (end, bottom) = origin, places[number]
            parts.append(element("path", class_="cost", d=f"M{left} {top}L{end} {bottom}"))
    for number in sorted(discs, key=lambda number: -radii[number]):  # the small ones on top
        disc, (left, top) = discs[number], places[number]
        kind = "defended" if disc.run.defence else "undefended"
        label = f"{disc.run.name}: {formats.ranked(disc.run.cost)}, "
        label += f"{formats.counted(disc.rate)} images recovered, {formats.size(disc.run.cost.bytes_up)} up"
        parts.append(element("path", class_=f"whisker {kind}", d=f"M{left} {y(disc.rate.low)}V{y(disc.rate.high)}"))
        parts.append(element("circle", element("title", label), class_=kind, cx=left, cy=top, r=radii[number]))
    taken = [(*places[number], radii[number] + 6) for number in discs]
    for number in discs:
        left, top = _free(*places[number], radii[number], taken)
        taken.append((left, top, 8.0))
        parts.append(element("text", number, class_="label", x=left, y=top + 4, text_anchor="middle"))
    label = "Accuracy against the share of images recovered from real messages, a disc per run; the figures are in the summary."
    keys = {False: ("disc undefended", "no defence"), True: ("disc defended", "with a defence")}
    return Chart(svg(label, parts), [keys[defended] for defended in sorted({bool(disc.run.defence) for disc in discs.values()})])


def success(target: ImageTarget, limit: str) -> Chart | None:
    """Shares of images recovered with their intervals, a row per attacker that was run and per baseline."""
    rows = [("attacker", outcome.attack, figures.success[limit]) for outcome, figures in images.ran(target)]
    if not rows:
        return None
    rows += [("guess", name, guess.success[limit]) for name, guess in target.baselines.items()]
    height, end = 36, WIDTH - RIGHT
    x, bottom = Scale(0, 1, 10, end), height * len(rows) + 6
    parts = [element("line", class_="grid", x1=x(value), y1=4, x2=x(value), y2=bottom) for value in x.ticks()]
    for number, (kind, name, rate) in enumerate(rows):
        base = height * number + 28
        parts.append(element("text", name, x=10, y=base - 11))
        parts.append(element("text", formats.counted(rate), x=end, y=base - 11, text_anchor="end"))
        parts.append(element("path", class_=f"whisker {kind}", d=f"M{x(rate.low)} {base}H{x(rate.high)}"))
        parts.append(element("circle", class_=kind, cx=x(rate.share), cy=base, r=5))
    anchors = {0.0: "start", 1.0: "end"}
    for value in x.ticks():
        share, anchor = f"{100 * value:.0f} %", anchors.get(value, "middle")
        parts.append(element("text", share, x=x(value), y=bottom + 17, text_anchor=anchor))
    label = "Share of images recovered by each attacker and each guess, with intervals; the figures are in the table of attempts."
    return Chart(svg(label, parts, bottom + 24), [("disc attacker", "attack"), ("disc guess", "guess without the message")])


def descent(target: ImageTarget) -> Chart | None:
    """Each attacker's loss over its steps, relative to its first value."""
    curves = [(outcome.attack, _relative(figures.curve)) for outcome, figures in images.ran(target)]
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
    """The ROC of the best attacks of membership inference."""
    return next(iter(rocs(attacks)), None)


def rocs(attacks: Sequence[MembershipOutcome]) -> list[Chart]:
    """The ROC of membership inference on logarithmic axes, which show low false-positive rates: plots of :data:`CURVES` attacks
    each, those of the largest area first."""
    curves = [attack for attack in members.ran(attacks) if len(attack.points.roc) > 1]
    best_first = sorted(range(len(curves)), key=lambda i: -curves[i].auc)
    parts = (sorted(best_first[start : start + CURVES]) for start in range(0, len(curves), CURVES))
    return [_roc([curves[i] for i in part]) for part in parts]


def _roc(shown: Sequence[members.Separation]) -> Chart:
    fewest = 10.0 ** -math.ceil(math.log10(max(10, *(attack.points.non_members for attack in shown))))
    x, y = across(fewest, 1, log=True), upwards(fewest, 1, log=True)
    parts = [frame(x, y, ("non-members falsely accused (FPR)", "members found (TPR)"), (_decade, _decade))]
    parts.append(element("path", class_="chance", d=f"M{x(fewest)} {y(fewest)}L{x(1)} {y(1)}"))
    names, about = _distinct_names([attack.outcome for attack in shown])
    parts += [line(attack.points.roc, x, y, style(index)) for index, attack in enumerate(shown)]
    label = "ROC of membership inference on logarithmic axes; area and rates are in the table."
    return Chart(svg(label, parts), [*_keys(names), ("chance", "guessing")], about)


def _distinct_names(attacks: Sequence[MembershipOutcome]) -> tuple[list[str], str]:
    """Names of attacks, with their round and clients only where these differ; and a sentence with those that do not.

    How many shadow models an attack used is in the table.
    """
    facts = [(f"round {attack.round}", _clients(attack)) for attack in attacks]
    rounds = len({round for round, _ in facts})
    shown = (rounds > 1, rounds != len(set(facts)))  # if each round has one group of clients, the round names it
    names = [
        ", ".join([attack.attack, *(fact for fact, is_shown in zip(both, shown, strict=True) if is_shown)])
        for attack, both in zip(attacks, facts, strict=True)
    ]
    return names, f"All are of {', '.join(facts[0])}." if len(set(facts)) == 1 else ""


def _clients(attack: MembershipOutcome) -> str:
    """``client 3``, or ``clients 0, 3``."""
    return f"client{'s' * (len(attack.senders) > 1)} {', '.join(sender.short for sender in attack.senders)}"


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


def _whole_percent(scale: Scale) -> Write:
    ticks = scale.ticks()
    places = 0 if len(ticks) < 2 or ticks[1] - ticks[0] >= 0.0099 else 1
    return lambda value: f"{100 * value:.{places}f} %"


def _decade(value: float) -> str:
    return f"{value:g}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")
