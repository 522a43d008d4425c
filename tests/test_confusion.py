"""The confusion matrix of a run's global model: what is stored of it, also after a kill, and its picture."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import precision_recall_fscore_support

from fedpriv.evaluation.protocols import MOST_CLASSES, confusion_of, global_summary
from fedpriv.plots.confusion import confusion_report, draw_confusion
from fedpriv.simulation.simulation import Simulation
from tests.marks import quick_first
from tests.simulation.small import play


def test_what_is_stored_of_it() -> None:
    report = confusion_report(np.array([[3, 1], [2, 4]]), ("cat", "dog"), 7)
    assert json.loads(json.dumps(report)) == {
        "round": 7,
        "classes": [
            {"name": "cat", "precision": 3 / 5, "recall": 3 / 4, "f1": 2 / 3, "support": 4},
            {"name": "dog", "precision": 4 / 5, "recall": 4 / 6, "f1": 8 / 11, "support": 6},
        ],
        "confusion": [[3, 1], [2, 4]],
    }


def test_of_many_classes_it_holds_what_occurs_alone(tmp_path: Path) -> None:
    """Numbers as scikit-learn's; memory and file grow with the samples, not with the square of the classes."""
    draw, classes = np.random.default_rng(0), 100_000
    labels = draw.integers(0, classes, 3000)
    predicted = np.where(draw.random(3000) < 0.3, labels, draw.integers(0, classes, 3000))
    tracemalloc.start()
    confusion = confusion_of(labels, predicted, classes)
    scores = global_summary(confusion)
    assert tracemalloc.get_traced_memory()[1] < 100 * 8 * classes
    tracemalloc.stop()
    for average in ("macro", "weighted"):
        right = precision_recall_fscore_support(labels, predicted, average=average, zero_division=0)
        for name, value in zip(("precision", "recall", "f1"), right[:3], strict=True):
            assert scores[f"global_{name}_{average}"] == pytest.approx(value, abs=1e-12)
    report = confusion_report(confusion, [str(number) for number in range(classes)], 1)
    assert {(t, p): n for t, p, n in report["pairs"]} == Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    assert "confusion" not in report and len(report["classes"]) == classes
    assert not draw_confusion(confusion, [""] * classes, tmp_path / "picture.png") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("classes", [MOST_CLASSES, MOST_CLASSES + 1])
def test_dense_and_sparse_ones_are_the_same(classes: int) -> None:
    draw = np.random.default_rng(1)
    labels, predicted = draw.integers(0, 40, 500), draw.integers(0, 40, 500)
    small = confusion_of(labels, predicted, 40)
    assert global_summary(confusion_of(labels, predicted, classes)) == pytest.approx(global_summary(small), abs=1e-12)
    assert isinstance(confusion_of(labels, predicted, classes), np.ndarray) == (classes == MOST_CLASSES)


@pytest.mark.slow
@pytest.mark.usefixtures("real_plots")
def test_the_end_of_a_run_has_that_of_the_last_round(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedavg", **{"train.rounds": 2}).folder
    confusion, metrics = json.loads(folder.confusion_file.read_text()), folder.records()[-1]["metrics"]
    assert confusion["round"] == 2
    assert global_summary(np.array(confusion["confusion"])).items() <= metrics.items()
    sizes = [path.stat().st_size for path in folder.plots.iterdir()]
    assert len(sizes) == 3 and min(sizes) > 10_000, "the run has drawn its pictures"
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["protocols"]["global_test_f1"] == pytest.approx(
        np.mean([record["metrics"]["global_f1_macro"] for record in folder.records()[1:]])
    )


@pytest.mark.slow
def test_a_personalised_method_has_none(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", "fedrep", **{"train.rounds": 1}).folder
    assert not folder.confusion_file.exists() and not (folder.plots / "confusion.png").exists()


def test_killed_after_the_last_round_it_is_the_same(simulate: Callable[..., Simulation]) -> None:
    simulation = simulate("fedavg", **{"train.rounds": 2})
    resumed = Simulation(simulation.federation, simulation.folder, lambda text: None)
    resumed.restore()
    simulation.federation.resident.row.fill_(0)
    assert (resumed.scorer.confusion(resumed.state) == simulation.scorer.confusion(simulation.state)).all()


@pytest.mark.parametrize("classes", quick_first([1, 2, 10, 77, 200]))
def test_it_is_drawn_with_few_classes_and_with_many(tmp_path: Path, classes: int) -> None:
    rng = np.random.default_rng(classes)
    confusion = rng.integers(0, 2, (classes, classes)) + 30 * np.eye(classes, dtype=np.int64)
    confusion[classes // 2] *= classes < 2  # a class without samples
    names = [f"${number} a name that is longer than its place_$" for number in range(classes)]
    draw_confusion(confusion, names, tmp_path / "plots" / "confusion.png")
    with Image.open(tmp_path / "plots" / "confusion.png") as image:
        assert image.width == 1500
        colors = image.convert("RGB").getcolors(1 << 24)
        assert colors is not None and len(colors) > 20


def drawn(monkeypatch: pytest.MonkeyPatch, confusion: list[list[int]], names: list[str]) -> tuple[list[str], ...]:
    """The texts of the cells, of the rows and of the columns."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    draw_confusion(np.array(confusion), names, Path("no.png"))
    axes = figures[0].axes[0]
    ticks = ([text.get_text() for text in labels] for labels in (axes.get_yticklabels(), axes.get_xticklabels()))
    return [text.get_text() for text in axes.texts], *ticks


def test_a_cell_has_its_share_and_its_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cells, rows, columns = drawn(monkeypatch, [[1200, 400], [0, 1000]], ["no", "yes"])
    assert cells == ["75 %\n(1,200)", "25 %\n(400)", "100 %\n(1,000)"] and rows == columns == ["no", "yes"]


def test_columns_of_long_names_are_numbered_as_their_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"an intent with a long name, {number}" for number in range(5)]
    _, rows, columns = drawn(monkeypatch, np.eye(5, dtype=int).tolist(), names)
    assert columns == ["0", "1", "2", "3", "4"] and rows == [f"{name}  {number}" for number, name in enumerate(names)]


@pytest.mark.slow
def test_a_cell_has_the_colour_of_its_share(tmp_path: Path) -> None:
    """Of so many classes that no cell has its count, ten times the samples of one change nothing; another share does."""
    pictures = []
    for index, first in enumerate(([8, 2], [80, 20], [2, 8])):
        confusion = np.eye(13, dtype=np.int64)
        confusion[0, :2] = first
        draw_confusion(confusion, [f"class {number}" for number in range(13)], tmp_path / f"{index}.png")
        with Image.open(tmp_path / f"{index}.png") as image:
            pictures.append(np.asarray(image.convert("RGB"))[150:])  # below the title, whose accuracy differs
    assert (pictures[0] == pictures[1]).all()
    assert (pictures[0] != pictures[2]).any()
