"""Which point is chosen, from trades that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpriv.audit.conditions import conditions
from fedpriv.audit.judge.measures import most_recovered
from fedpriv.audit.results import AuditedRun, Cost
from fedpriv.errors import FedprivError
from fedpriv.frontier.decision import Trade, most_accurate, nearest, pareto_optimal, trade
from fedpriv.frontier.search import search
from tests.audit.sample_findings import _attack, _attempt, findings


def a_trade(label: str, accuracy: float | None, recovered: float | None, bytes: int, **changes: Any) -> Trade:
    given: dict[str, Any] = {"at_chance": False, "unmet": ()} | changes
    return Trade(
        label, "fedavg", label, 0, accuracy, None, given["at_chance"], recovered, None, {}, bytes, "words", given["unmet"]
    )


def names(trades: list[Trade]) -> set[str]:
    return {one.label for one in trades}


def test_a_point_is_beaten_by_one_that_is_as_good_in_all_and_better_in_one() -> None:
    points = [
        a_trade("accurate", 0.9, 0.5, 10),
        a_trade("tight", 0.8, 0.0, 10),
        a_trade("small", 0.7, 0.5, 1),
        a_trade("beaten", 0.8, 0.5, 10),
        a_trade("equal to tight", 0.8, 0.0, 10),
        a_trade("at chance", 0.99, 0.0, 0, at_chance=True),
        a_trade("not known", 0.99, None, 0),
    ]
    assert names(pareto_optimal(points)) == {"accurate", "tight", "small", "equal to tight"}


def test_the_cheapest_holds_the_target_and_is_better_than_guessing() -> None:
    points = [
        a_trade("leaks", 0.95, 0.5, 10, unmet=("recovered<=0",)),
        a_trade("at chance", 0.94, 0.0, 10, at_chance=True),
        a_trade("large", 0.9, 0.0, 10),
        a_trade("small", 0.9, 0.0, 5),
        a_trade("worse", 0.8, 0.0, 1),
    ]
    best = most_accurate(points)
    assert best is not None and best.label == "small"
    assert most_accurate(points[:2]) is None
    near = nearest([*points[:2], a_trade("misses two", 0.99, 0.5, 1, unmet=("a", "b"))])
    assert near is not None and near.label == "leaks"


def test_a_trade_says_what_the_audit_found() -> None:
    target = conditions("recovered<=0.05,membership_auc<=0.6,epsilon<=8", "--target")
    undefended, defended, local = findings().runs
    found = trade("mp", "mpfedcon", "none", undefended, [0.9, 1.0], target)
    assert found.recovered == 1.0 and found.recovered_interval is not None and found.recovered_interval[1] == 1.0
    assert found.unmet == tuple(str(one) for one in target) and not found.holds
    assert found.leakage["epsilon"] is None and found.bytes == 217_800_000 + (undefended.cost.bytes_down or 0)
    assert trade("dp", "mpfedcon", "dp", defended, [], target).leakage["epsilon"] == 8.0
    assert trade("dp", "mpfedcon", "dp", defended, [0.6, 1.0], target).interval == (0.0, 1.0), "an accuracy is a share"
    unknown = trade("local", "local", "none", local, [], conditions("recovered<=1"))
    assert unknown.recovered is None and unknown.unmet == ("recovered<=1",), "what is not known does not hold"


def test_of_equal_shares_the_fewest_samples_leave_the_most_open() -> None:
    targets = [_attack("message", "message", n, [_attempt("analytic", (0, 0, 0), n, 0.1)], None) for n in (72, 6)]
    most = most_recovered(replace(findings().runs[0], images=tuple(targets), centers=()))
    assert most is not None and most.n == 6


def of(share: float | None) -> AuditedRun:
    """A run of which an attack recovered that share."""
    hits = None if share is None else (round(100 * share),) * 3
    tried = [] if hits is None else [_attack("message", "message", 100, [_attempt("analytic", hits, 100, 0.1)], None)]
    return AuditedRun(
        name="run", run_id="run", method="fedavg", title="", dataset="digits", model="mlp", modalities=("image",), seed=0,
        cost=Cost(bytes_up=0), images=tuple(tried),
    )  # fmt: skip


def test_the_search_finds_the_least_strength_that_holds() -> None:
    target = conditions("recovered<=0.05,membership_auc<=0.6")
    found = search(lambda strength: of(0.0 if strength >= 1e-4 else 0.5), (1e-6, 1e-1), target, lambda text: None)
    assert 1e-4 <= found.held[0] < 1.5e-4 and found.held[-1] == 1e-1 and list(found.held) == sorted(found.held)
    assert len(found.tried) == 7
    assert search(lambda strength: of(0.0), (1e-6, 1e-1), target, lambda text: None).held == [1e-6, 1e-1]


def test_of_a_share_that_is_kept_the_greatest_that_holds_is_found() -> None:
    """Greater is weaker: the search goes from the least share."""
    found = search(lambda kept: of(0.0 if kept <= 0.1 else 0.5), (0.9, 0.001), conditions("recovered<=0.05"), lambda text: None)
    assert 0.07 < found.held[0] <= 0.1 and found.held[-1] == 0.001


@pytest.mark.parametrize("share", [0.5, None])
def test_a_search_that_finds_none_says_so(share: float | None) -> None:
    found = search(lambda strength: of(share), (1e-6, 1e-1), conditions("recovered<=0.05"), lambda text: None)
    assert not found.held and len(found.tried) == 1


def test_a_strength_under_which_clients_diverge_does_not_hold() -> None:
    def measure(strength: float) -> AuditedRun:
        if strength > 1e-2:
            raise FedprivError("the local update of client 0 in round 1 diverged under this defence")
        return of(0.0)

    said: list[str] = []
    assert not search(measure, (1e-6, 1e-1), conditions("recovered<=0.05"), said.append).held
    assert "does not hold, as it is not known: the local update of client 0 in round 1 diverged" in said[0]
