"""The picture of a frontier: the order of its rows, and what their words say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedpriv.frontier.picture import draw, only_by_bytes, ordered
from fedpriv.frontier.show import meets_in_a_word

TARGET = ["recovered<=0.05", "membership_auc<=0.6"]


def point(defence: str, recovered: float | None, accuracy: float | None, auc: float | None = 0.55, **more: Any) -> dict[str, Any]:
    facts = {
        "leakage": {"recovered": recovered, "membership_auc": auc, "epsilon": None},
        "recovered_interval": None if recovered is None else (max(0.0, recovered - 0.1), min(1.0, recovered + 0.1)),
        "interval": None,
        "at_chance": False,
        "pareto_optimal": None not in (accuracy, recovered),
        "seed": 0,
        "bytes": 10,
        "holds": False,
        "unmet": TARGET,
    }
    return {"label": defence, "method": "fedavg", "defence": defence, "recovered": recovered, "accuracy": accuracy} | facts | more


def frontier(*trades: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"trades": list(trades), "seed": 0, "target": TARGET, "chosen": None, "nearest": None} | more


def test_rows_are_ordered_by_accuracy_and_followed_by_their_fresh_seeds() -> None:
    found = frontier(point("a", 0, 0.7), point("b", 0, None), point("c", 0, 0.9), point("a", 0, 0.95, seed=1000))
    assert [(one["label"], one["seed"]) for one in ordered(found)] == [("c", 0), ("a", 0), ("a", 1000), ("b", 0)]


def test_what_makes_a_point_pareto_optimal() -> None:
    best, pruned = point("none", 0.0, 0.9), point("prune", 0.2, 0.8, bytes=5)
    trades = [best, pruned, point("none", 0.0, 0.95, seed=1000), point("mask", 0.0, 0.97, at_chance=True)]
    assert only_by_bytes(pruned, trades) and not only_by_bytes(best, trades)


def test_whether_a_point_meets_the_target_in_a_word() -> None:
    found = frontier(chosen="gaussian")
    words = [
        meets_in_a_word(found, one)
        for one in (
            point("gaussian", 0.0, 0.9, holds=True, unmet=[]),
            point("gaussian", 0.0, 0.9, holds=True, unmet=[], seed=1000),
            point("mask", 1.0, 0.9, unmet=["recovered<=0.05"]),
            point("mask", 0.0, 0.9, unmet=["recovered<=0.05"]),
            point("dp-sample", 0.0, 0.1, unmet=[], at_chance=True),
        )
    ]
    assert words == ["chosen", "yes", "no", "not known", "at chance"]


@pytest.mark.parametrize(
    "more",
    [{"chosen": "a+b"}, {"target": []}, {"target": [*TARGET, "epsilon<=8"], "nearest": "none"}],
    ids=["chosen", "no target", "another measure"],
)
def test_it_is_drawn(more: dict[str, Any], tmp_path: Path) -> None:
    long = "mask:names=[statistic.*,encoder.fc1.*]+gaussian:variance=1e-07"
    points = [
        point("a+b", 0.0, 0.9, recovered_open=0.4, membership_open=0.7),
        point("none", 1.0, 0.8, None),
        point(long, None, None),
    ]
    draw(frontier(*points, **more), tmp_path / "frontier.png")
    with Image.open(tmp_path / "frontier.png") as picture:
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
        assert any(colour == (255, 241, 194) for _, colour in colours or []) == bool(more.get("target", True)), (
            "a row is highlighted"
        )
    draw(frontier(), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
