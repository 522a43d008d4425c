"""Searches of many problems: split to fit into memory, started again by the attacker's own loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.gradients.matching import Objective
from fedpriv.attacks.gradients.variables import Layout
from fedpriv.attacks.optimise import search as module
from fedpriv.attacks.optimise.lbfgs import STRONG_WOLFE, LbfgsOptions
from fedpriv.attacks.optimise.search import SearchResult, SolverResult, Starts, lbfgs, search

N, P = 7, 4


def bowls() -> Objective:
    """Problems with minima at their own ``centre``."""
    centres = torch.randn(N, P, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Objective(lambda x, data: (x["x"] - data["centre"]).square().sum(), Layout({"x": (P,)}), {"centre": centres})


def start(draw: torch.Generator) -> Tensor:
    return torch.randn(P, generator=draw)


def solve(objective: Objective, starts: Starts) -> SolverResult:
    return lbfgs(objective, starts.points, STRONG_WOLFE, steps=3)


def test_search_splits_large_batches_without_changing_results(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search(bowls(), start, solve, seed=1)
    sizes = []

    def noted(objective: Objective, starts: Starts) -> SolverResult:
        sizes.append(len(starts.points))
        return solve(objective, starts)

    size = 4 * (200 * P + 8 * P)  # bytes: histories, gradients and what is known of a problem
    monkeypatch.setattr(module, "MEMORY", 3 * size)
    split = search(bowls(), start, noted, seed=1)
    assert sizes == [3, 3, 1]
    torch.testing.assert_close(split.x, whole.x)
    torch.testing.assert_close(split.x, bowls().data["centre"], atol=1e-6, rtol=0)
    monkeypatch.setattr(module, "MEMORY", size // 2)
    sizes.clear()
    search(bowls(), start, noted, seed=1)
    assert sizes == [1] * N, "one problem is always tried"


def test_only_what_failed_is_started_again_and_the_best_is_kept() -> None:
    """The solver's answers are made up: attempt k of problem i ends with ``losses[k][i]``."""
    losses = [[0.5, 0.0, 3.0], [0.7, 9.0, float("nan")], [0.2, 9.0, 2.0]]
    calls: list[int] = []
    last_starts: list[bool] = []
    objective = Objective(lambda x, data: x["x"].sum(), Layout({"x": (1,)}), {"number": torch.arange(3.0)})

    def made_up(part: Objective, starts: Starts) -> SolverResult:
        attempt, rows = len(calls), part.data["number"].long()
        calls.append(len(rows))
        last_starts.append(bool(starts.last.all()))
        assert torch.equal(starts.of, rows) and starts.last.any() == starts.last.all()
        loss = torch.tensor(losses[attempt])[rows]
        return SolverResult(
            torch.full_like(starts.points, float(attempt)), loss, loss[None], torch.ones(len(rows), dtype=torch.long)
        )

    best = search(objective, lambda draw: torch.zeros(1), made_up, seed=0, restarts=2, failed=0.1)
    assert calls == [3, 2, 2] and last_starts == [False, False, True]
    torch.testing.assert_close(best.loss, torch.tensor([0.2, 0.0, 2.0]))
    assert best.restart.tolist() == [2, 0, 2] and best.x.flatten().tolist() == [2, 0, 2]
    assert best.iterations.tolist() == [3, 1, 3]


def test_batched_restarts_use_the_same_starts() -> None:
    """The solver's answers are made up: attempt k of problem i ends with ``losses[k][i]``."""
    losses = torch.tensor([[0.5, 0.0, 3.0], [0.7, 9.0, 0.05], [0.2, 9.0, 2.0], [0.4, 9.0, torch.nan]])
    objective = Objective(lambda x, data: x["x"].sum(), Layout({"x": (1,)}), {"number": torch.arange(3.0)})

    def run(at_once: bool) -> tuple[SearchResult, list[Starts]]:
        calls: list[Starts] = []

        def made_up(part: Objective, starts: Starts) -> SolverResult:
            assert torch.equal(part.data["number"].long(), starts.of)
            first = sum(int((call.of == 0).sum()) for call in calls)
            attempts = [first + int((starts.of[:i] == of).sum()) for i, of in enumerate(starts.of)]
            calls.append(starts)
            loss = losses[attempts, starts.of]
            return SolverResult(starts.points, loss, loss[None], torch.ones(len(loss), dtype=torch.long))

        return search(objective, lambda draw: torch.randn(1, generator=draw), made_up, 0, 3, 0.1, at_once), calls

    (one_by_one, calls), (batched, few) = run(False), run(True)
    assert [len(call.of) for call in calls] == [3, 2, 1, 1] and [len(call.of) for call in few] == [3, 6]
    assert few[1].of.tolist() == [0, 2] * 3 and few[1].last.tolist() == [False] * 4 + [True] * 2
    for name in ("x", "loss", "restart"):
        assert torch.equal(getattr(batched, name), getattr(one_by_one, name)), name
    assert batched.restart.tolist() == [2, 0, 1] and batched.iterations.tolist() == [4, 1, 4]


def test_starts_of_a_problem_end_with_the_first_that_is_done() -> None:
    objective = Objective(lambda x, data: x["x"].square().sum(), Layout({"x": (1,)}), {"number": torch.arange(4.0)})
    slow = LbfgsOptions(lr=0.01, iterations=1, tolerance_grad=0.0, tolerance_change=0.0)
    x = torch.tensor([[0.11], [9.0], [9.0], [9.0]])
    result = lbfgs(objective, x, slow, 20, enough=0.0121, of=torch.tensor([5, 5, 7, 7]))
    assert result.iterations[0] == result.iterations[1] < 5 and result.iterations[2:].tolist() == [20, 20]
    above = torch.tensor([1.0, torch.inf, 1.0, torch.inf])
    assert lbfgs(objective, x, slow, 20, give_up=(3, above)).iterations.tolist() == [20, 20, 3, 20]


def test_a_start_depends_on_seed_problem_and_attempt_alone() -> None:
    seen: list[Tensor] = []

    def noted(objective: Objective, starts: Starts) -> SolverResult:
        x = starts.points
        seen.append(x)
        return SolverResult(x, torch.ones(len(x), dtype=x.dtype), x[:, 0][None], torch.ones(len(x), dtype=torch.long))

    search(bowls(), start, noted, seed=1, restarts=1)
    search(bowls(), start, noted, seed=2)
    search(bowls().select(torch.arange(2)), start, noted, seed=1)
    first, again, other_seed, fewer = seen
    assert len(torch.cat([first, again, other_seed]).unique(dim=0)) == 3 * N
    torch.testing.assert_close(fewer, first[:2])


def test_a_start_ends_where_its_loss_has_stopped_falling() -> None:
    """Losses ``floor + exp(-x)``: each step removes most of the second part, so losses with a floor stand still."""
    data = {"floor": torch.tensor([0.0, 1.0, torch.nan], dtype=torch.float64)}
    objective = Objective(lambda x, data: data["floor"] + (-x["x"]).exp().sum(), Layout({"x": (1,)}), data)
    one_move = LbfgsOptions(iterations=1, tolerance_grad=0.0, tolerance_change=0.0)
    x = torch.zeros(3, 1, dtype=torch.float64)
    ended = lbfgs(objective, x, one_move, steps=30, stalled=(5, 0.01))
    through = lbfgs(objective, x, one_move, steps=30)
    assert through.iterations.tolist() == [30, 30, 1]
    assert ended.iterations[0] == 30 and 5 < ended.iterations[1] < 20 and ended.iterations[2] == 1
    assert torch.equal(ended.x[0], through.x[0]) and ended.loss[1] == pytest.approx(1.0, abs=1e-2)


def test_a_start_that_has_succeeded_ends_earlier() -> None:
    """The same loss ``0.5 + exp(-x)`` twice, one of which counts as a success."""
    objective = Objective(
        lambda x, data: data["floor"] + (-x["x"]).exp().sum(), Layout({"x": (1,)}), {"floor": torch.tensor([0.5])}
    )
    one_move = LbfgsOptions(lr=0.3, iterations=1, tolerance_grad=0.0, tolerance_change=0.0)
    failed, succeeded = (
        int(lbfgs(objective, torch.zeros(1, 1), one_move, 60, stalled=(5, 0.01), succeeded=least).iterations)
        for least in (0.4, 2.0)
    )
    assert 5 < succeeded < failed < 60
