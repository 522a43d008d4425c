"""Plots of runs, also of those with few values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_runs import line
from matplotlib.figure import Figure
from PIL import Image

from fedpriv.plots import PALETTE, client_gains, compare_curves, learning_curve, per_client_score
from fedpriv.plots.curves import _look, draw_score
from fedpriv.scores.catalogue import ACCURACY, score_named
from fedpriv.tracking import Record
from tests.marks import quick_first


def records(rounds: int, seed: int = 0) -> list[Record]:
    return [line(number, seed=seed) for number in range(rounds + 1)]


def drawn(path: Path) -> bool:
    with Image.open(path) as image:
        colors = image.convert("RGB").getcolors(1 << 24)
        return image.width >= 1000 and colors is not None and len(colors) > 50


@pytest.mark.parametrize("rounds", quick_first([-1, 0, 3, 60], 2))
def test_learning_curve(tmp_path: Path, rounds: int) -> None:
    learning_curve(records(rounds), tmp_path / "plots" / "curve.png")
    assert drawn(tmp_path / "plots" / "curve.png")


@pytest.mark.slow
def test_learning_curve_of_a_diverged_run(tmp_path: Path) -> None:
    broken = records(3)
    broken[2]["metrics"]["train_loss"], broken[3]["metrics"]["train_loss"] = float("inf"), float("nan")
    learning_curve(broken, tmp_path / "curve.png")
    assert drawn(tmp_path / "curve.png")


@pytest.mark.parametrize("accuracies", [[], [None], [0.5], [0.1 * i for i in range(10)] + [None], [0.7] * 500])
def test_per_client_accuracy(tmp_path: Path, accuracies: list[float | None]) -> None:
    per_client_score(accuracies, tmp_path / "clients.png")
    assert drawn(tmp_path / "clients.png")


def test_bars_of_few_clients_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def bars(*arguments: Any) -> list[str]:
        per_client_score(arguments[0], tmp_path / "clients.png", *arguments[1:])
        return [text.get_text() for text in figures.pop().axes[0].get_xticklabels()]

    assert bars([0.9, None, 0.5], ACCURACY, ("Basel", "Bern", "$Chur")) == ["$Chur", "Basel"]
    assert bars([0.9, 0.2, 0.5], score_named("brier")) == ["0", "2", "1"], "from worst to best"
    assert len(bars([0.5] * 31, ACCURACY, [f"client {number}" for number in range(31)])) < 31


def test_many_curves_and_long_labels_are_numbered_from_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    last = {f"run {number}": line(20, level=0.5 + number / 20, seed=number)["metrics"]["accuracy"] for number in range(8)}
    compare_curves(
        {name: [[line(n, level=0.5 + i / 20, seed=i) for n in range(21)]] for i, name in enumerate(last)}, tmp_path / "c.png"
    )
    compare_curves({"a" * 41: [records(3)]}, tmp_path / "c.png")
    compare_curves({"a": [records(3)], "b": [records(3)]}, tmp_path / "c.png")
    many, long, few = figures
    best_first = sorted(last, key=lambda name: -last[name])
    wanted = [f"{number}  {name}: {last[name]:.1%}" for number, name in enumerate(best_first, 1)]
    assert [text.get_text() for text in many.legends[0].get_texts()] == wanted
    for axes in many.axes:
        assert {text.get_text(): text.xy[1] for text in axes.texts} == {
            str(number): pytest.approx(last[name]) for number, name in enumerate(best_first, 1)
        }
    many.canvas.draw()
    boxes = [text.get_window_extent() for text in many.axes[0].texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i]), "no number hides another"
    assert [text.get_text() for text in long.axes[0].texts] == ["1"] and not few.axes[0].texts


@pytest.mark.slow
def test_client_gains(tmp_path: Path) -> None:
    client_gains({"fedavg": [-0.5, -0.4, 0.1] * 20, "fedrep": [0.0]}, "local", tmp_path / "gains.png")
    assert drawn(tmp_path / "gains.png")


@pytest.mark.slow
def test_compare_curves(tmp_path: Path) -> None:
    runs: dict[str, list[list[Record]]] = {"mpfedcon": [records(20), records(15, 1)], "fedavg": [records(10)], "new": [[]]}
    runs |= {f"m{i}": [records(5)] for i in range(8)}
    compare_curves(runs, tmp_path / "compare.png")
    assert drawn(tmp_path / "compare.png")


def test_ticks_are_told_apart() -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    near = records(3)
    for number, record in enumerate(near):
        record["metrics"]["accuracy"] = 0.12 + 0.01 * number
    draw_score(axes, near)
    axes.figure.canvas.draw()
    texts = [text.get_text() for text in axes.get_yticklabels()]
    assert len(set(texts)) == len(texts) > 3


def test_runs_that_coincide_are_both_seen(tmp_path: Path) -> None:
    same = records(20)
    for name, runs in {"one": {"a": [same]}, "both": {"a": [same], "b": [same]}}.items():
        compare_curves(runs, tmp_path / f"{name}.png")

    def colors(name: str) -> set[object]:
        with Image.open(tmp_path / f"{name}.png") as image:
            curves = image.convert("RGB").crop((0, 0, image.width, 2 * image.height // 3))  # without the legend
            return {color for _, color in curves.getcolors(1 << 24) or []}

    blue, orange = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
    assert blue in colors("one") and orange not in colors("one")
    assert {blue, orange} <= colors("both")


@pytest.mark.slow
@pytest.mark.parametrize("probed", [False, True])
def test_learning_curve_of_a_run_without_accuracy(tmp_path: Path, probed: bool) -> None:
    without_accuracy = [
        {**record, "per_client": {}, "metrics": {"train_loss": 2.0, **({"probe/1": 0.5, "probe/0.1": 0.4} if probed else {})}}
        for record in records(4)
    ]
    learning_curve(without_accuracy, tmp_path / "curve.png")
    compare_curves({"a": [without_accuracy]}, tmp_path / "compare.png")
    assert drawn(tmp_path / "curve.png") and drawn(tmp_path / "compare.png")


def test_many_curves_differ_in_colour_or_line() -> None:
    looks = [_look(index, 10) for index in range(40)]
    assert len({(look["color"], look["linestyle"]) for look in looks}) == 40
    assert len({look["color"] for look in looks[: 2 * len(PALETTE)]}) == 2 * len(PALETTE)


def test_the_whole_legend_is_in_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the labels are, and also without spaces."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    words = "fedavg, sample-level DP, noise 1.1, target epsilon 8.0, clip grad norm 1.5, schedule " + "schedule.txt, " * 12
    for labels in (["fedavg", words, words + "2"], ["x" * 400], [words + str(number) for number in range(9)]):
        compare_curves({label: [records(3)] for label in labels}, tmp_path / "compare.png")
        figure = figures.pop()
        figure.canvas.draw()
        box, legend = figure.bbox, figure.legends[0].get_window_extent()
        assert box.x0 <= legend.x0 < legend.x1 <= box.x1 and box.y0 <= legend.y0 < legend.y1 <= box.y1
        assert figure.axes[0].get_window_extent().height > 150, "there is room for the curves"


def test_a_legend_of_long_names_is_not_cut(tmp_path: Path) -> None:
    short, long = tmp_path / "short.png", tmp_path / "long.png"
    compare_curves({f"run {number}": [records(3)] for number in range(6)}, short)
    compare_curves({f"a run of a long name, {'very ' * 8}long {number}": [records(3)] for number in range(6)}, long)
    with Image.open(short) as few, Image.open(long) as many:
        assert few.width == many.width and few.height < many.height, "its names are in fewer columns"
