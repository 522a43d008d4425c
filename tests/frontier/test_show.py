"""What the page says of points that a fresh seed refused, and without a target."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fedpriv.audit.conditions import conditions
from fedpriv.frontier.run import _listed
from fedpriv.frontier.show import COLUMNS, answer, markdown
from tests.frontier.test_decision import a_trade


def found(*trades: dict[str, Any], **changes: Any) -> dict[str, Any]:
    about = {"target": ["recovered<=0.05"], "chosen": None, "confirmed": [], "nearest": None}
    return {"trades": trades, **about, "strengths": [], "not_run": {}, "command": "fedpriv frontier", "seconds": 1.0, **changes}


def listed(label: str, seed: int = 0, recovered: float = 0.0, **changes: Any) -> dict[str, Any]:
    one = replace(a_trade(label, 0.9, recovered, 10), seed=seed, leakage={"membership_auc": 0.58, "epsilon": None}, **changes)
    return asdict(one) | {"holds": one.holds, "pareto_optimal": False}


def test_what_a_fresh_seed_refused_is_told_beside_what_was_chosen() -> None:
    trades = [listed("weak"), listed("strong")]
    trades += [listed("weak", 1000, 1 / 6, unmet=("recovered<=0.05",)), listed("strong", 1001)]
    tried = [{"label": "weak", "seed": 1000, "holds": False}, {"label": "strong", "seed": 1001, "holds": True}]
    all_of_it = found(*trades, chosen="strong", confirmed=tried)
    assert (
        "fedavg with weak met it in the grid, not on seed 1000, where it misses recovered<=0.05: accuracy 90.0 %, "
        "recovered 16.7 %, AUC 0.58."
    ) in answer(all_of_it)
    rows = [line for line in markdown(all_of_it).splitlines() if line.startswith("| fedavg |") and "| 0 |" in line]
    assert [row.split("|")[-2].strip() for row in rows] == ["in the grid, not on seed 1000", "yes"]


def test_what_fresh_seeds_refused_is_told_where_none_is_chosen() -> None:
    tried = [
        {"label": name, "seed": seed, "holds": False} for name, seed in (("leaks", 1000), ("guesses", 1001), ("fails", 1002))
    ]
    trades = [listed(name) for name in ("leaks", "guesses", "fails")]
    trades += [listed("leaks", 1000, 0.2, unmet=("recovered<=0.05",)), listed("guesses", 1001, at_chance=True)]
    text = answer(found(*trades, confirmed=tried, nearest="leaks"))
    assert text == (
        "None meets recovered<=0.05. fedavg with leaks met it in the grid, not on seed 1000, where it misses recovered<=0.05: "
        "accuracy 90.0 %, recovered 20.0 %, AUC 0.58. fedavg with guesses met it in the grid, not on seed 1001, where it is no "
        "better than guessing: accuracy 90.0 %, recovered 0.0 %, AUC 0.58. fedavg with fails met it in the grid, not on seed "
        "1002, where it could not be trained and audited. fedavg with leaks comes nearest: it misses nothing but the fresh seed, "
        "at an accuracy of 90.0 %."
    )


def test_without_a_target_no_point_meets_it() -> None:
    page = markdown(found(listed("none", recovered=1.0), target=[]))
    assert "meets the target" not in page and f"| {COLUMNS} |" in page
    assert f"| {COLUMNS} | meets the target |" in markdown(found(listed("none")))
    one = a_trade("none", 0.9, 1.0, 10)
    assert _listed(one, (), True)["holds"] is None and _listed(one, conditions("recovered<=1"), True)["holds"] is True


def test_a_point_that_keeps_a_bound_and_misses_it_all_the_same_is_explained() -> None:
    """An attack recovered little, and might have recovered more: a share below the bound is not known to be all."""
    open_still = listed("quiet", recovered=0.01, unmet=("recovered<=0.05",))
    open_still["leakage"]["recovered"] = 0.01
    page = markdown(found(open_still, nearest="quiet"))
    assert "it misses recovered<=0.05 (not known: recovered may be more), at" in page
    assert page.count("| not known: recovered may be more |") == 1
    open_still["leakage"]["recovered"] = 0.06
    assert "not known" not in markdown(found(open_still, nearest="quiet"))


def test_an_interval_of_an_earlier_version_stays_a_share() -> None:
    assert "90.0 % (69.4 to 100.0 %)" in markdown(found(listed("none", interval=(0.694, 1.073))))
