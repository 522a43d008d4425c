"""Batched L-BFGS is torch's, problem by problem."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedpriv.attacks.optimise.lbfgs import BatchedLbfgs, Function, LbfgsOptions
from tests.marks import quick_first

N, P = 5, 8


def rosenbrock(x: Tensor, a: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (a[:-1] - x[:-1]) ** 2).sum()


def quadratic(x: Tensor, a: Tensor) -> Tensor:
    return ((x - a) ** 2 * torch.logspace(-1, 1, P, dtype=x.dtype)).sum()


def wavy(x: Tensor, a: Tensor) -> Tensor:
    return (torch.sin(3 * x + a) + 0.1 * (x - a) ** 2).sum()


def batch(loss, data: Tensor) -> Function:
    def function(rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        gradient, value = vmap(grad_and_value(loss))(x, data[rows])
        return value, gradient

    return function


def with_torch(loss, x: Tensor, data: Tensor, options: LbfgsOptions, steps: int) -> tuple[list[Tensor], int]:
    point = x.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [point], lr=options.lr, max_iter=options.iterations, max_eval=options.evaluations, history_size=options.history,
        line_search_fn="strong_wolfe" if options.line_search else None,
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(point, data)
        value.backward()
        return value

    path = []
    for _ in range(steps):
        optimiser.step(closure)
        path.append(point.detach().clone())
    return path, optimiser.state[point]["func_evals"]


@pytest.mark.parametrize("line_search", [False, True])
@pytest.mark.parametrize("history", quick_first([3, 100]))
@pytest.mark.parametrize("loss", [rosenbrock, quadratic, wavy])
def test_every_problem_takes_the_path_that_torch_takes(loss, history: int, line_search: bool) -> None:
    torch.manual_seed(1)
    x, data = torch.randn(N, P, dtype=torch.float64), torch.randn(N, P, dtype=torch.float64)
    # Without a line search a start far off is chaotic, and rounding would decide.
    options = LbfgsOptions(history=history, line_search=line_search, lr=1.0 if line_search else 0.3)
    steps = 4
    ours = BatchedLbfgs(batch(loss, data), x, options)
    path = []
    for _ in range(steps):
        ours.step()
        path.append(ours.x.clone())
    for i in range(N):
        theirs, evaluations = with_torch(loss, x[i], data[i], options, steps)
        for mine, his in zip(path, theirs, strict=True):
            torch.testing.assert_close(mine[i], his, rtol=1e-6, atol=1e-7)
        if bool(ours.running[i]):
            assert int(ours.evaluations[i]) == evaluations
