"""Minimising many objectives: in batches of bounded size, from seeded starts, with restarts where the loss stays high."""

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
"""Limit on the bytes of the histories and gradients of a batch."""
TOGETHER = 32
"""Largest batch of problems; on CPU larger ones are not faster."""
RESTARTS = 12
"""So many restarts run as one batch, several of a problem where few problems are left: with the LeNet of DLG, an evaluation of
four starts costs half as much again as that of one."""
STALLED = (10, 0.05)
"""(outer steps, share): an L-BFGS start whose loss fell by less than that share in so many steps is at its end. Starts that
recover an image lose a fifth of it and more in that time; those on noise, or in a wrong minimum, next to nothing."""
SETTLED = 0.25
"""The same share where a start has succeeded by its own loss: the last ones of a batch cost most, for pixels that hardly
change."""


@dataclass
class SolverResult:
    """The result of a search of ``n`` problems: points ``(n, p)``, losses ``(n,)``, curve ``(steps, n)``, steps used ``(n,)``."""

    x: Tensor
    loss: Tensor
    curve: Tensor
    iterations: Tensor


@dataclass(frozen=True)
class Starts:
    """Where ``n`` minimisations begin.

    Attributes:
        points: ``(n, p)``.
        last: which are the last of their problem, and must not be given up early ``(n,)``.
        of: the numbers of the problems that they belong to ``(n,)``.
    """

    points: Tensor
    last: Tensor
    of: Tensor


Solve = Callable[[Objective, Starts], SolverResult]
Start = Callable[[torch.Generator], Tensor]
"""Draws the start of one problem ``(p,)``."""


def lbfgs(
    objective: Function,
    x: Tensor,
    options: LbfgsOptions,
    steps: int,
    enough: float = 0.0,
    give_up: tuple[int, float | Tensor] = (0, 0.0),
    stalled: tuple[int, float] = (0, 0.0),
    scale: float = 1.0,
    of: Tensor | None = None,
    succeeded: float = 0.0,
) -> SolverResult:
    """L-BFGS with at most ``steps`` outer steps; a problem stops when its loss is at most ``enough``.

    Args:
        give_up: ``(step, loss)``: after so many steps, problems above that loss, or those ``(n,)``, stop, since a restart costs
            less.
        stalled: ``(steps, share)``: problems whose loss fell by less than that share of itself in so many steps stop; see
            :data:`STALLED`. With 0 steps none does.
        scale: factor on the loss within L-BFGS, whose tolerances are absolute.
        of: rows of the same number ``(n,)`` are starts of the same problem, and stop when one of them is at most ``enough``.
        succeeded: with ``stalled``, problems at most at that loss stop where it fell by less than :data:`SETTLED`.
    """

    def scaled(rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = objective(rows, points)
        return value * scale, gradient * scale

    solver = BatchedLbfgs(scaled, x, options)
    iterations = torch.zeros(len(x), dtype=torch.long)
    curve = [x.new_zeros(0, len(x))]
    rows = torch.arange(len(x))
    limit = torch.as_tensor(give_up[1]).expand(len(x)) * scale
    with doing() as tell:
        for step in range(1, steps + 1):
            done = solver.value <= enough * scale
            if of is not None:
                done = torch.isin(of, of[done])
            rows = rows[solver.running[rows] & ~done[rows]]
            if step - 1 == give_up[0] > 0:
                rows = rows[solver.value[rows] <= limit[rows]]
            if step - 1 > stalled[0] > 0:
                now = curve[-1][0, rows]
                least = torch.where(now <= succeeded, max(SETTLED, stalled[1]), stalled[1])
                rows = rows[~(now > (1 - least) * curve[-1 - stalled[0]][0, rows])]
            if len(rows) == 0:
                break
            tell(f"step {step} of at most {steps} for {len(rows)} of {len(x)} messages")
            iterations[rows] += 1
            solver.step(rows)
            values = torch.full_like(solver.value, torch.nan)
            values[rows] = solver.value[rows] / scale
            curve.append(values[None])
    loss, _ = objective(torch.arange(len(x)), solver.x)
    return SolverResult(solver.x, loss, torch.cat(curve), iterations)


def adam(
    objective: Objective, x: Tensor, lr: float, steps: int, signed: bool = False, milestones: tuple[float, ...] = (),
    betas: tuple[float, float] = (0.9, 0.999), record: int = 20, enough: float = 0.0,
) -> SolverResult:  # fmt: skip
    """Adam on all problems at once, which does not couple them; the point with the least loss is kept.

    Args:
        signed: only the sign of the gradient is used (Geiping et al. 2020).
        milestones: shares of the steps at which the learning rate falls to a tenth.
        record: number of steps between entries of the curve.
    """
    x, first, second = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
    best, least = x.clone(), x.new_full((len(x),), torch.inf)
    rows, curve = torch.arange(len(x)), []
    with doing() as tell:
        for step in range(1, steps + 1):
            tell(f"step {step} of {steps}")
            value, gradient = objective(rows, x)
            better = value < least
            best[better], least[better] = x[better], value[better]
            if step % record == 1 or record == 1:
                curve.append(value)
                if bool((least <= enough).all()):
                    break
            gradient = gradient.sign() if signed else gradient
            first = torch.lerp(gradient, first, betas[0])
            second = torch.lerp(gradient.square(), second, betas[1])
            rate = lr * 0.1 ** sum(step > share * steps for share in milestones)
            size = rate / (1 - betas[0] ** step)
            x = x - size * first / ((second / (1 - betas[1] ** step)).sqrt() + 1e-8)
    value, _ = objective(rows, x)
    better = value < least
    best[better], least[better] = x[better], value[better]
    return SolverResult(best, least, torch.stack(curve), torch.full((len(x),), step))


@dataclass
class SearchResult:
    """The result with the least loss over all starts, per problem."""

    x: Tensor
    loss: Tensor
    curve: Tensor
    iterations: Tensor
    restart: Tensor
    cpu_seconds: float


def search(
    objective: Objective, start: Start, solve: Solve, seed: int, restarts: int = 0, failed: float = 0.0, at_once: bool = False
) -> SearchResult:
    """Solve every problem; restart, up to ``restarts`` times, those whose loss is above ``failed``.

    A start depends on ``seed``, the number of the problem and of the restart, but not on the other problems.

    Args:
        at_once: several restarts of a problem run as one batch (:data:`RESTARTS`), for small nets.
    """
    began = time.process_time()
    n = objective.n
    example = next(iter(objective.data.values()))
    x = example.new_zeros(n, objective.layout.size)
    loss, restart = example.new_full((n,), torch.inf), torch.zeros(n, dtype=torch.long)
    iterations, curves = torch.zeros(n, dtype=torch.long), [example.new_zeros(0)] * n
    attempt = 0
    while attempt <= restarts:
        wanting = (~(loss <= failed)).nonzero().flatten()
        if len(wanting) == 0:
            break
        together = _together(objective)
        ahead = max(1, min(RESTARTS, together) // len(wanting)) if attempt and at_once else 1
        tries = torch.arange(attempt, min(attempt + ahead, restarts + 1))
        numbers = f"{attempt + 1}" if len(tries) == 1 else f"{attempt + 1} to {attempt + len(tries)}"
        pairs = zip(
            torch.split(wanting.repeat(len(tries)), together),
            torch.split(tries.repeat_interleave(len(wanting)), together),
            strict=True,
        )
        for rows, which in pairs:
            draws = [torch.Generator().manual_seed(_mix(seed, *pair)) for pair in zip(rows.tolist(), which.tolist(), strict=True)]
            points = torch.stack([start(draw) for draw in draws]).to(example.dtype)
            with doing(f"start {numbers} of at most {restarts + 1}"):
                found = solve(objective.select(rows), Starts(points, which == restarts, rows))
            iterations.index_add_(0, rows, found.iterations)
            for i, row in enumerate(rows.tolist()):
                value = found.loss[i].nan_to_num(torch.inf, torch.inf)
                if which[i] == 0 or value < loss[row]:
                    x[row], loss[row], restart[row], curves[row] = found.x[i], value, which[i], found.curve[:, i]
        attempt += len(tries)
    longest = max(len(curve) for curve in curves)
    padded = [torch.cat([curve, curve.new_full((longest - len(curve),), torch.nan)]) for curve in curves]
    return SearchResult(x, loss, torch.stack(padded, 1), iterations, restart, time.process_time() - began)


def _together(objective: Objective) -> int:
    weights = sum(tensor[0].numel() for tensor in objective.data.values())
    return int(min(TOGETHER, max(1, MEMORY // (4 * (200 * objective.layout.size + 8 * weights)))))


def _mix(*numbers: int) -> int:
    """One seed from several numbers."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
        mixed ^= mixed >> 29
    return mixed
