"""Minimise many reconstructions' losses: in batches of bounded size, from seeded starts, with restarts of failed ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.gradients.matching import Objective
from fedpriv.attacks.optimise.lbfgs import BatchedLbfgs, Function, LbfgsOptions

MEMORY = 512 * 2**20
"""Limit on the bytes of a batch's histories and gradients."""
MAX_BATCH = 32
"""Largest batch of problems; on CPU larger ones are not faster."""
RESTARTS = 12
"""Number of restarts that run as one batch, several per problem if few are left: with DLG's LeNet, evaluating four starts costs
1.5 times as much as one."""
STALLED = (10, 0.05)
"""(outer steps, share): an L-BFGS start ends if its loss fell by less than this share in so many steps. In that time the loss of
starts that recover an image falls by a fifth or more, that of others (noise, wrong minima) hardly at all."""
BETAS, RECORD = (0.9, 0.999), 20
"""Of Adam; steps between entries of its curve."""
SETTLED = 0.25
"""The same share for starts that have succeeded by their own loss, whose pixels hardly change any more."""


@dataclass
class SolverResult:
    """The result of minimising ``n`` problems.

    Attributes:
        x: points ``(n, p)``.
        loss: ``(n,)``.
        curve: losses after every recorded step ``(steps, n)``.
        iterations: steps used ``(n,)``.
    """

    x: Tensor
    loss: Tensor
    curve: Tensor
    iterations: Tensor


@dataclass(frozen=True)
class Starts:
    """The starting points of ``n`` minimisations.

    Attributes:
        points: ``(n, p)``.
        last: whether it is the last start of its problem, which must not be given up early ``(n,)``.
        of: index of its problem ``(n,)``.
    """

    points: Tensor
    last: Tensor
    of: Tensor


Solve = Callable[[Objective, Starts], SolverResult]
Start = Callable[[torch.Generator], Tensor]
"""Draws the start of one problem ``(p,)``."""


def lbfgs(
    objective: Function, x: Tensor, options: LbfgsOptions, steps: int, enough: float = 0.0,
    give_up: tuple[int, float | Tensor] = (0, 0.0), stalled: tuple[int, float] = (0, 0.0), scale: float = 1.0,
    of: Tensor | None = None, succeeded: float = 0.0,
) -> SolverResult:  # fmt: skip
    """L-BFGS with at most ``steps`` outer steps; a problem stops when its loss is at most ``enough``.

    Args:
        give_up: ``(step, loss)``: problems whose loss is above this after so many steps stop, as a restart is cheaper. One loss
            for all, or one each ``(n,)``.
        stalled: ``(steps, share)``: problems whose loss fell by less than this share in so many steps stop (:data:`STALLED`); 0
            steps switch this off.
        scale: factor on the loss within L-BFGS, whose tolerances are absolute.
        of: index of the problem that each start belongs to ``(n,)``; all starts of a problem stop when one reaches ``enough``.
        succeeded: loss at or below which :data:`SETTLED` replaces the share of ``stalled``.
    """

    def scaled(rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = objective(rows, points)
        return value * scale, gradient * scale

    solver = BatchedLbfgs(scaled, x, options)
    iterations = torch.zeros(len(x), dtype=torch.long)
    curve = [x.new_zeros(0, len(x))]
    rows = torch.arange(len(x))
    limit = torch.as_tensor(give_up[1]).expand(len(x)) * scale
    with doing() as report:
        for step in range(1, steps + 1):
            done = solver.value <= enough * scale
            if of is not None:
                done = torch.isin(of, of[done])
            rows = rows[solver.running[rows] & ~done[rows]]
            if step - 1 == give_up[0] > 0:
                rows = rows[solver.value[rows] <= limit[rows]]
            if step - 1 > stalled[0] > 0:
                now = curve[-1][0, rows]
                threshold = torch.where(now <= succeeded, max(SETTLED, stalled[1]), stalled[1])
                rows = rows[~(now > (1 - threshold) * curve[-1 - stalled[0]][0, rows])]
            if len(rows) == 0:
                break
            report(f"step {step} of at most {steps} for {len(rows)} of {len(x)} messages")
            iterations[rows] += 1
            solver.step(rows)
            values = torch.full_like(solver.value, torch.nan)
            values[rows] = solver.value[rows] / scale
            curve.append(values[None])
    loss, _ = objective(torch.arange(len(x)), solver.x)
    return SolverResult(solver.x, loss, torch.cat(curve), iterations)


def adam(
    objective: Objective, x: Tensor, lr: float, steps: int, signed: bool = False, milestones: tuple[float, ...] = (),
    enough: float = 0.0,
) -> SolverResult:  # fmt: skip
    """Adam on all problems at once (they do not interact); keeps each problem's point with the smallest loss.

    Args:
        signed: use only the sign of the gradient (Geiping et al. 2020).
        milestones: shares of the steps at which the learning rate falls to a tenth.
        enough: stop when all losses are at most this, checked every :data:`RECORD` steps.
    """
    x, first, second = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
    best, least = x.clone(), x.new_full((len(x),), torch.inf)
    rows, curve = torch.arange(len(x)), []
    with doing() as report:
        for step in range(1, steps + 1):
            report(f"step {step} of {steps}")
            value, gradient = objective(rows, x)
            better = value < least
            best[better], least[better] = x[better], value[better]
            if step % RECORD == 1:
                curve.append(value)
                if bool((least <= enough).all()):
                    break
            gradient = gradient.sign() if signed else gradient
            first = torch.lerp(gradient, first, BETAS[0])
            second = torch.lerp(gradient.square(), second, BETAS[1])
            rate = lr * 0.1 ** sum(step > share * steps for share in milestones)
            size = rate / (1 - BETAS[0] ** step)
            x = x - size * first / ((second / (1 - BETAS[1] ** step)).sqrt() + 1e-8)
    value, _ = objective(rows, x)
    better = value < least
    best[better], least[better] = x[better], value[better]
    return SolverResult(best, least, torch.stack(curve), torch.full((len(x),), step))


@dataclass
class SearchResult(SolverResult):
    """The best result over all starts, per problem.

    Attributes:
        iterations: of all starts together ``(n,)``.
        restart: the start that gave the result, from 0 ``(n,)``.
    """

    restart: Tensor
    cpu_seconds: float


def search(
    objective: Objective, start: Start, solve: Solve, seed: int, restarts: int = 0, failed: float = 0.0,
    batch_restarts: bool = False,
) -> SearchResult:  # fmt: skip
    """Solve every problem, and restart those whose loss is above ``failed`` up to ``restarts`` times.

    A start depends only on ``seed`` and the indices of its problem and restart.

    Args:
        batch_restarts: run several restarts of a problem as one batch (:data:`RESTARTS`), for small nets.
    """
    began = time.process_time()
    n = objective.n
    example = next(iter(objective.data.values()))
    x = example.new_zeros(n, objective.layout.size)
    loss, restart = example.new_full((n,), torch.inf), torch.zeros(n, dtype=torch.long)
    iterations, curves = torch.zeros(n, dtype=torch.long), [example.new_zeros(0)] * n
    attempt = 0
    while attempt <= restarts:
        failing = (~(loss <= failed)).nonzero().flatten()
        if len(failing) == 0:
            break
        most = batch_size(objective)
        ahead = max(1, min(RESTARTS, most) // len(failing)) if attempt and batch_restarts else 1
        tries = torch.arange(attempt, min(attempt + ahead, restarts + 1))
        numbers = f"{attempt + 1}" if len(tries) == 1 else f"{attempt + 1} to {attempt + len(tries)}"
        pairs = zip(
            torch.split(failing.repeat(len(tries)), most), torch.split(tries.repeat_interleave(len(failing)), most), strict=True
        )
        for rows, which in pairs:
            generators = [
                torch.Generator().manual_seed(_mix(seed, *pair)) for pair in zip(rows.tolist(), which.tolist(), strict=True)
            ]
            points = torch.stack([start(generator) for generator in generators]).to(example.dtype)
            with doing(f"start {numbers} of at most {restarts + 1}"):
                result = solve(objective.select(rows), Starts(points, which == restarts, rows))
            iterations.index_add_(0, rows, result.iterations)
            for i, row in enumerate(rows.tolist()):
                value = result.loss[i].nan_to_num(torch.inf, torch.inf)
                if which[i] == 0 or value < loss[row]:
                    x[row], loss[row], restart[row], curves[row] = result.x[i], value, which[i], result.curve[:, i]
        attempt += len(tries)
    longest = max(len(curve) for curve in curves)
    padded = [torch.cat([curve, curve.new_full((longest - len(curve),), torch.nan)]) for curve in curves]
    return SearchResult(x, loss, torch.stack(padded, 1), iterations, restart, time.process_time() - began)


def batch_size(objective: Objective) -> int:
    """The number of starts that are minimised at once."""
    weights = sum(tensor[0].numel() for tensor in objective.data.values())
    return int(min(MAX_BATCH, max(1, MEMORY // (4 * (200 * objective.layout.size + 8 * weights)))))


def _mix(*numbers: int) -> int:
    """One seed from several numbers."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
        mixed ^= mixed >> 29
    return mixed
