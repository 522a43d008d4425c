"""Which point is chosen, from trades that are made up."""

from __future__ import annotations

from dataclasses import replace

from fedpriv.audit.conditions import conditions
from fedpriv.audit.judge.measures import most_recovered
from fedpriv.frontier.decision import Trade, most_accurate, nearest, pareto_optimal, trade
from tests.audit.sample_findings import _attack, _attempt, findings
from tests.frontier.made_trades import make_trade


def labels(trades: list[Trade]) -> set[str]:
    return {trade.label for trade in trades}


def test_a_point_that_is_beaten_is_not_pareto_optimal() -> None:
    points = [
        make_trade("accurate", 0.9, 0.5, 10),
        make_trade("tight", 0.8, 0.0, 10),
        make_trade("small", 0.7, 0.5, 1),
        make_trade("beaten", 0.8, 0.5, 10),
        make_trade("equal to tight", 0.8, 0.0, 10),
        make_trade("at chance", 0.99, 0.0, 0, at_chance=True),
        make_trade("not known", 0.99, None, 0),
    ]
    assert labels(pareto_optimal(points)) == {"accurate", "tight", "small", "equal to tight"}


def test_the_most_accurate_meets_the_target_and_does_not_guess() -> None:
    points = [
        make_trade("leaks", 0.95, 0.5, 10, unmet="recovered<=0"),
        make_trade("at chance", 0.94, 0.0, 10, at_chance=True),
        make_trade("large", 0.9, 0.0, 10),
        make_trade("small", 0.9, 0.0, 5),
        make_trade("worse", 0.8, 0.0, 1),
    ]
    best = most_accurate(points)
    assert best is not None and best.label == "small"
    assert most_accurate(points[:2]) is None
    near = nearest([*points[:2], make_trade("misses two", 0.99, 0.5, 1, unmet="recovered<=0,labels<=0")])
    assert near is not None and near.label == "leaks"


def test_a_trade_has_the_figures_of_the_audit() -> None:
    target = conditions("recovered<=0.05,membership_auc<=0.6,epsilon<=8", "--target")
    undefended, defended, local = findings().runs
    point = trade("mp", "mpfedcon", "none", undefended, [0.9, 1.0], target)
    assert point.recovered is not None and (point.recovered.share, point.recovered.high) == (1.0, 1.0)
    assert point.unmet == tuple(target) and not point.holds
    assert point.leakage["epsilon"] is None and point.bytes == 217_800_000 + (undefended.cost.bytes_down or 0)
    assert trade("dp", "mpfedcon", "dp", defended, [], target).leakage["epsilon"] == 8.0
    wide = trade("dp", "mpfedcon", "dp", defended, [0.6, 1.0], target)
    assert wide.accuracy_interval == (0.0, 1.0), "an accuracy is a share"
    unknown = trade("local", "local", "none", local, [], conditions("recovered<=1"))
    assert unknown.recovered is None and [str(condition) for condition in unknown.unmet] == ["recovered<=1"]


def test_of_equal_shares_the_rate_of_the_fewest_samples_counts() -> None:
    targets = [_attack("message", "message", n, [_attempt("analytic", (0, 0, 0), n, 0.1)], None) for n in (72, 6)]
    most = most_recovered(replace(findings().runs[0], images=tuple(targets), centers=()))
    assert most is not None and most.n == 6
