"""The picture of a frontier: the order of its rows, and its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge.measures import OpenRate
from fedpriv.frontier.picture import draw, only_by_bytes, ordered
from fedpriv.frontier.show import meets_in_a_word
from tests.frontier.made_trades import make_frontier, make_trade

TARGET = "recovered<=0.05,membership_auc<=0.6"


def test_rows_are_by_accuracy_each_followed_by_its_fresh_seeds() -> None:
    points = [make_trade("a", 0.7), make_trade("b", None), make_trade("c", 0.9), make_trade("a", 0.95, seed=1000)]
    rows = ordered(make_frontier(*points))
    assert [(row.label, row.seed) for row in rows] == [("c", 0), ("a", 0), ("a", 1000), ("b", 0)]


def test_a_point_may_be_pareto_optimal_only_by_bytes() -> None:
    best, pruned = make_trade("none"), make_trade("prune", 0.8, 0.2, bytes=5)
    trades = [best, pruned, make_trade("none", 0.95, seed=1000), make_trade("mask", 0.97, at_chance=True)]
    assert only_by_bytes(pruned, trades) and not only_by_bytes(best, trades)


def test_whether_a_point_meets_the_target_in_a_word() -> None:
    frontier = make_frontier(chosen="gaussian")
    words = [
        meets_in_a_word(frontier, trade)
        for trade in (
            make_trade("gaussian"),
            make_trade("gaussian", seed=1000),
            make_trade("mask", recovered=1.0, unmet="recovered<=0.05"),
            make_trade("mask", unmet="recovered<=0.05"),
            make_trade("dp-sample", 0.1, at_chance=True),
        )
    ]
    assert words == ["chosen", "yes", "no", "not known", "at chance"]


@pytest.mark.parametrize(
    "changes",
    [{"chosen": "a+b"}, {"target": ""}, {"target": f"{TARGET},epsilon<=8", "nearest": "none"}],
    ids=["chosen", "no target", "another measure"],
)
def test_a_frontier_is_drawn(changes: dict[str, Any], tmp_path: Path) -> None:
    long = "mask:names=[statistic.*,encoder.fc1.*]+gaussian:variance=1e-07"
    points = [
        make_trade("a+b", auc=0.55, most_open=OpenRate(wilson(0, 6), "dlg", "single image"), membership_open=0.7),
        make_trade("none", 0.8, 1.0, unmet=TARGET),
        make_trade(long, None, None, auc=0.55, unmet=TARGET),
    ]
    draw(make_frontier(*points, **{"target": TARGET, "best": ("a+b", "none")} | changes), tmp_path / "frontier.png")
    with Image.open(tmp_path / "frontier.png") as picture:
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
        is_highlighted = any(colour == (255, 241, 194) for _, colour in colours or [])
    assert is_highlighted == bool(changes.get("target", True))


def test_a_frontier_without_points_is_not_drawn(tmp_path: Path) -> None:
    draw(make_frontier(), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
