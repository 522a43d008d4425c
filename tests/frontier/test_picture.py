"""The picture of a frontier: labels that can be read where points lie together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedpriv.plots.frontier import _LINE, _labels, draw


def point(defence: str, recovered: float, accuracy: float, auc: float | None = 0.62, **more: Any) -> dict[str, Any]:
    facts = {
        "leakage": {"membership_auc": auc},
        "recovered_interval": None,
        "interval": None,
        "at_chance": False,
        "pareto_optimal": True,
        "seed": 0,
        "bytes": 1,
    }
    return {"label": defence, "method": "fedavg", "defence": defence, "recovered": recovered, "accuracy": accuracy} | facts | more


POINTS = [
    point("gaussian:variance=1e-07", 0.0, 0.974),
    point("gaussian:variance=0.0001", 0.0, 0.976),
    point("none", 1.0, 0.974, 0.857),
    point("mask:last=2", 1.0, 0.966, None),
    point("prune:fraction=0.05", 0.89, 0.935),
    point("dp-sample:target_epsilon=8", 0.0, 0.849),
]


def test_labels_of_a_side_stand_below_each_other() -> None:
    found = _labels(POINTS, "gaussian:variance=0.0001")
    assert {text for *_, text in found} == {
        "gaussian:variance=1e-07, AUC 0.62", "gaussian:variance=0.0001, AUC 0.62 (chosen)", "no defence, AUC 0.86", "mask:last=2",
        "prune:fraction=0.05, AUC 0.62", "dp-sample:target_epsilon=8, AUC 0.62",
    }  # fmt: skip
    for left in (True, False):
        heights = [height for x, _, height, _ in found if (x > 60) == left]
        assert len(heights) == 3 and all(above - below > _LINE - 1e-6 for above, below in pairwise(heights))
    assert next(height for *_, height, text in found if text.startswith("dp-")) == pytest.approx(84.9), (
        "where there is room, at its point"
    )


def test_it_is_drawn(tmp_path: Path) -> None:
    draw(POINTS, tmp_path / "frontier.png", ["recovered<=0.05"], None)
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
