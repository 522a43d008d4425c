"""``frontier.json``: the committed ones are read, and give the committed pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge.measures import OpenRate
from fedpriv.audit.results.stored import from_json, to_json
from fedpriv.frontier.decision import pareto_optimal
from fedpriv.frontier.result import Confirmation, DefenceSearch, Frontier
from fedpriv.frontier.search import Search
from fedpriv.frontier.show import markdown
from tests.frontier.made_trades import make_frontier, make_trade

COMMITTED = sorted((Path(__file__).parents[2] / "experiments" / "frontier").glob("*/frontier.json"))


def test_the_json_form_is_read_as_it_was_written() -> None:
    widest = OpenRate(wilson(0, 6), "dlg", "single image")
    trade = make_trade("a", 0.9, 0.1, unmet="recovered<=0.05", accuracy_interval=(0.8, 1.0), most_open=widest)
    frontier = make_frontier(
        trade,
        chosen="a",
        confirmations=(Confirmation("a", 1000, True),),
        searches=(DefenceSearch("fedavg", "gaussian:variance=1..2", Search((1.0,), ((2.0, {"recovered": None}),))),),
    )
    data = json.loads(json.dumps(to_json(frontier)))
    assert data["target"] == ["recovered<=0.05"] == data["trades"][0]["unmet"]
    assert from_json(Frontier, data) == frontier


@pytest.mark.parametrize("change", [{"format": 0}, {"target": ["recoverd<=0"]}, {"trades": [{}]}])
def test_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        from_json(Frontier, to_json(make_frontier()) | change)


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: file.parent.name)
def test_a_committed_frontier_gives_its_committed_page(file: Path) -> None:
    frontier = from_json(Frontier, json.loads(file.read_text(encoding="utf-8")))
    page = file.with_name("frontier.md").read_text(encoding="utf-8")
    # The audits themselves are not committed, which a page may say in place of the link.
    assert markdown(frontier).rpartition("All audits")[0] == page.rpartition("All audits")[0]
    grid = [trade for trade in frontier.trades if trade.seed == frontier.seed]
    assert [best.label for best in pareto_optimal(grid)] == list(frontier.pareto_optimal)
