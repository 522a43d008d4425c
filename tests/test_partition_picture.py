"""The picture of a partition: who is who in it, whatever the samples are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedpriv.plots.partition import draw_partition


@pytest.mark.parametrize(("classes", "clients"), [(2, 3), (40, 3), (101, 3), (2, 31)])
def test_clients_and_classes_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int, clients: int
) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure, file: object, **_: object) -> None:
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    names, hospitals = [f"$class {number}" for number in range(classes)], [f"hospital {number}" for number in range(clients)]
    counts = np.random.default_rng(0).integers(0, 9, (clients, classes))
    draw_partition(counts, names, "four hospitals", tmp_path / "partition.png", hospitals)
    sizes, heat, bar = figures[0].axes
    assert sizes.get_ylabel() == "samples" and bar.get_ylabel() == "samples of the class"
    rows, columns = ([text.get_text() for text in labels] for labels in (heat.get_yticklabels(), heat.get_xticklabels()))
    assert (rows == names) == (classes <= 100) and (columns == hospitals) == (clients <= 30)
