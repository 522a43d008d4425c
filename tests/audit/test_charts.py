"""The plots of the audit's page: what they draw, and what their legends say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.audit.page import charts
from fedpriv.audit.page.render import render_html
from fedpriv.audit.page.svg import Scale
from fedpriv.audit.results.audit import Answer, AuditedRun
from fedpriv.audit.results.images import ImageFigures, ImageOutcome, ImageTarget
from fedpriv.audit.results.outcome import Interval, Sender
from tests.audit.sample_findings import findings, pictures, rate
from tests.audit.taken_apart import Page, at


def test_scales() -> None:
    decades = Scale(0.01, 1, 0, 200, log=True)
    assert [decades(v) for v in (0.0, 0.01, 0.1, 1)] == [0, 0, 100, 200]
    assert decades.ticks() == pytest.approx([0.01, 0.1, 1])
    assert Scale(0, 1, 100, 0)(0.25) == 75
    assert Scale(0.93, 0.97, 0, 1).ticks() == pytest.approx([0.93, 0.94, 0.95, 0.96, 0.97])
    assert Scale(-0.02, 0.33, 0, 1).ticks() == pytest.approx([0, 0.1, 0.2, 0.3])


def discs(runs: Sequence[AuditedRun]) -> list[tuple[float, float, float]]:
    chart = charts.tradeoff(runs)
    assert chart is not None
    results = [{k: v for k, v in disc.items() if v} for disc in Page(chart.drawing).all("circle")]
    return sorted((float(disc["cx"]), float(disc["cy"]), float(disc["r"])) for disc in results)


def named(name: str, successes: int = 13, n: int = 72, **cost: Any) -> AuditedRun:
    """The first run by another name, with one attack on a message that recovered so many."""
    run = findings().runs[0]
    outcome = run.images[0].outcomes[0]
    figures = figures_of(outcome)
    result = replace(outcome, figures=replace(figures, success=dict.fromkeys(figures.success, rate(successes, n))))
    return replace(run, name=name, cost=replace(run.cost, **cost), images=(run.images[0].only([result]),))


def figures_of(outcome: ImageOutcome) -> ImageFigures:
    assert outcome.figures is not None
    return outcome.figures


def test_the_tradeoff_puts_runs_where_their_figures_are() -> None:
    runs = [
        named(str(index), 10 * index, 40, accuracy=0.5 + 0.1 * index, bytes_up=100 * 4 ** (1 - index % 2)) for index in range(3)
    ]
    (x0, y0, r0), (x1, y1, r1), (x2, y2, r2) = discs(runs)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x1 > x0
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y1 < y0  # upwards is more recovered
    assert (r1 / r0) ** 2 == pytest.approx(1 / 4, abs=0.01) and r2 == r0
    assert charts.tradeoff([findings().runs[2]]) is None


def test_one_run_has_no_tradeoff_and_a_legend_has_what_there_is() -> None:
    audit = findings()
    run = audit.runs[0]
    assert charts.tradeoff([run]) is None
    text = Page(render_html(replace(audit, runs=audit.runs[:1]), pictures())).text
    assert "Trade-off" not in text, "there is nothing to compare"
    chart = charts.tradeoff([run, replace(run, name="other")])
    assert chart is not None and [name for _, name in chart.keys] == ["no defence"]


@pytest.mark.parametrize("number", [1, 4, 5, 11])
def test_a_roc_plot_has_at_most_four_curves_and_the_rest_unfolds(number: int) -> None:
    row = findings().runs[0].membership[0]
    attacks = tuple(
        replace(at(row, 0.5 + index / 100, Interval(0.4, 0.6, number)), attack=f"attack {index}") for index in range(number)
    )
    plots = charts.rocs(attacks)
    curves = [[name for _, name in chart.keys if name != "guessing"] for chart in plots]
    assert all(len(names) <= 4 for names in curves) and sorted(name for names in curves for name in names) == sorted(
        attack.attack for attack in attacks
    )
    assert set(curves[0]) == {f"attack {index}" for index in range(max(0, number - 4), number)}, "the best are shown first"
    text = render_html(
        replace(findings(), runs=(replace(findings().runs[0], membership=attacks, answer=Answer("", 1, "")),)), pictures()
    )
    section = text[text.index("<h3>Membership</h3>") :]
    opened = re.sub(r"<details>.*?</details>", "", section, flags=re.DOTALL)
    assert opened.count("ROC of membership inference") == 1 and section.count("ROC of membership inference") == len(plots)


def test_a_legend_says_what_its_curves_differ_in() -> None:
    row = replace(findings().runs[0].membership[0], senders=(Sender(0), Sender(3)))
    alike = charts.roc([replace(row, round=3), replace(row, round=3, attack="loss threshold")])
    assert alike is not None and [name for _, name in alike.keys] == ["LiRA", "loss threshold", "guessing"]
    assert alike.about == "All are of round 3, clients 0, 3."
    rounds = charts.roc([replace(row, round=1, senders=(Sender(1), Sender(2))), replace(row, round=3)])
    assert rounds is not None and [name for _, name in rounds.keys] == ["LiRA, round 1", "LiRA, round 3", "guessing"]
    assert not rounds.about
    clients = charts.roc([replace(row, round=3), replace(row, round=3, senders=(Sender(1),))])
    assert clients is not None and [name for _, name in clients.keys][:2] == ["LiRA, clients 0, 3", "LiRA, client 1"]


def test_numbers_of_runs_that_coincide_do_not_hide_each_other() -> None:
    chart = charts.tradeoff([named(str(index)) for index in range(6)])
    assert chart is not None
    labels = [text for text in Page(chart.drawing).all("text") if text.get("class") == "label"]
    places = [(float(text["x"] or 0), float(text["y"] or 0)) for text in labels]
    assert len(places) == 6
    assert all(abs(a - c) >= 8 or abs(b - d) >= 8 for i, (a, b) in enumerate(places) for c, d in places[:i])


def with_curve(*curves: tuple[tuple[int, float], ...]) -> ImageTarget:
    target = findings().runs[0].images[0]
    item = target.outcomes[0]
    drawn = [
        replace(item, attack=name, figures=replace(figures_of(item), curve=curve))
        for name, curve in zip("ab", curves, strict=False)
    ]
    return target.only([*drawn, replace(item, figures=None, status=Status.not_run(Reason("not needed", "no reason")))])


def test_curves_begin_at_one_and_skip_what_no_logarithm_shows() -> None:
    chart = charts.descent(with_curve(((0, 4.0), (5, float("nan")), (10, 0.0), (20, 0.04)), ()))
    assert chart is not None and [name for _, name in chart.keys] == ["a"]
    (path,) = [p["d"] for p in Page(chart.drawing).all("path") if (p["class"] or "").startswith("line")]
    assert path == "M62.0 16.0L466.0 284.0"  # from 1 at the top left to a hundredth at the bottom right
    assert charts.descent(with_curve(())) is None
