"""L-BFGS (Liu & Nocedal 1989) for many independent problems at once; each behaves as under ``torch.optim.LBFGS``.

Every problem has its own history, step size, counters and stop flags; only the function evaluations are batched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from fedpriv.attacks.optimise.line_search import Search, Trial, strong_wolfe

Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(rows (k,), points (k, p)) -> values (k,), gradients (k, p)``: problem ``rows[i]`` at ``points[i]``."""


@dataclass(frozen=True)
class LbfgsOptions:
    """The arguments of ``torch.optim.LBFGS`` with its defaults; the published attacks use them with ``lr=1``.

    Attributes:
        iterations: largest number per outer step (torch: ``max_iter``).
        evaluations: largest number per outer step (torch: ``max_eval``).
        line_search: strong Wolfe instead of steps of length ``lr``.
    """

    lr: float = 1.0
    iterations: int = 20
    evaluations: int = 25
    history: int = 100
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    line_search: bool = False


PUBLISHED = LbfgsOptions()
STRONG_WOLFE = LbfgsOptions(line_search=True)
SAFE_SCALE = 1e4
"""Factor for losses of at most about 1, since the tolerances of L-BFGS are absolute."""


class BatchedLbfgs:
    """The state of ``N`` problems in ``p`` unknowns.

    Attributes:
        x: the current points ``(N, p)``.
        value: the last function values ``(N,)``; without a line search, those before the last move.
        running: which problems may still move ``(N,)``: not at a stationary point, nor at a NaN.
        evaluations: number of evaluations ``(N,)``, as torch counts them.
    """

    def __init__(self, function: Function, x: Tensor, options: LbfgsOptions = PUBLISHED) -> None:
        n = len(x)
        self.function, self.options, self.x = function, options, x.clone()
        self.value = x.new_full((n,), torch.inf)
        self.running = torch.ones(n, dtype=torch.bool, device=x.device)
        self.evaluations = torch.zeros(n, dtype=torch.long, device=x.device)
        self._gradient, self._direction = torch.zeros_like(x), torch.zeros_like(x)
        self._before = torch.zeros_like(x)  # gradient at the previous point
        self._step = x.new_zeros(n)
        self._fresh = torch.zeros(n, dtype=torch.bool, device=x.device)  # whether value and gradient are those at x
        self._begun = torch.zeros(n, dtype=torch.bool, device=x.device)
        self._histories = [History(options.history, start) for start in x]

    def step(self, rows: Tensor | None = None) -> None:
        """One ``torch.optim.LBFGS.step`` for those of the problems ``rows`` (default: all) that still run."""
        options = self.options
        rows = torch.arange(len(self.x), device=self.x.device) if rows is None else rows
        rows = rows[self.running[rows]]
        self._evaluate(rows[~self._fresh[rows]])
        used = torch.ones_like(self.evaluations)
        self.evaluations[rows] += 1
        rows = self._still(rows, ~self._flat(rows) & self.value[rows].isfinite())
        for iteration in range(1, options.iterations + 1):
            if len(rows) == 0:
                return
            self._aim(rows)
            slope = (self._gradient[rows] * self._direction[rows]).sum(1)
            rows = self._still(rows, ~(slope > -options.tolerance_change))
            before = self.value[rows]
            if options.line_search:
                cost = self._search(rows, options.evaluations - used[rows])
            else:
                self.x[rows] += self._step[rows, None] * self._direction[rows]
                self._fresh[rows] = False
                cost = torch.zeros_like(rows)
                if iteration < options.iterations:  # torch does not evaluate after the last move of a step
                    self._evaluate(rows)
                    cost += 1
            used[rows] += cost
            self.evaluations[rows] += cost
            moved = (self._direction[rows] * self._step[rows, None]).abs().amax(1)
            ends = (used[rows] >= options.evaluations) | self._flat(rows) | (moved <= options.tolerance_change)
            ends |= (self.value[rows] - before).abs() < options.tolerance_change
            finite = self.value[rows].isfinite()
            rows = self._still(rows, finite)[~ends[finite]]

    def _evaluate(self, rows: Tensor) -> None:
        if len(rows):
            self.value[rows], self._gradient[rows] = self.function(rows, self.x[rows])
            self._fresh[rows] = True

    def _still(self, rows: Tensor, goes_on: Tensor) -> Tensor:
        """The rows that go on; the others are stopped for good."""
        self.running[rows[~goes_on]] = False
        return rows[goes_on]

    def _flat(self, rows: Tensor) -> Tensor:
        return self._gradient[rows].abs().amax(1) <= self.options.tolerance_grad

    def _aim(self, rows: Tensor) -> None:
        """Add the last move to the history; set the direction and the first step size of the next."""
        gradient = self._gradient[rows]
        begun = self._begun[rows]
        moves, changes = self._direction[rows] * self._step[rows, None], gradient - self._before[rows]
        for i, row in enumerate(rows.tolist()):
            if begun[i]:
                self._histories[row].learn(moves[i], changes[i])
            self._direction[row] = self._histories[row].direction(gradient[i])
        self._before[rows] = gradient
        first = (1 / gradient.abs().sum(1)).clamp(max=1) * self.options.lr
        self._step[rows] = torch.where(begun, torch.full_like(first, self.options.lr), first)
        self._begun[rows] = True

    def _search(self, rows: Tensor, allowed: Tensor) -> Tensor:
        """Move the problems ``rows`` by line search; returns the number of evaluations per problem ``(k,)``."""
        origin, direction = self.x[rows], self._direction[rows]
        gradient, value = self._gradient[rows], self.value[rows].tolist()
        slope = (gradient * direction).sum(1).tolist()
        longest, steps = direction.abs().amax(1).tolist(), self._step[rows].tolist()
        searches: dict[int, Search] = {}
        pending: dict[int, float] = {}
        for i, limit in enumerate(allowed.tolist()):
            start = Trial(0.0, value[i], gradient[i], slope[i])
            searches[i] = strong_wolfe(start, steps[i], longest[i], self.options.tolerance_change, limit)
            pending[i] = next(searches[i])
        cost = torch.zeros_like(rows)
        while pending:
            which = torch.tensor(list(pending), device=rows.device)
            step = origin.new_tensor(list(pending.values()))
            values, gradients = self.function(rows[which], origin[which] + step[:, None] * direction[which])
            slopes = (gradients * direction[which]).sum(1).tolist()
            answers = zip(list(pending.items()), values.tolist(), gradients, slopes, strict=True)
            for (i, at), value_there, gradient_there, slope_there in answers:
                try:
                    pending[i] = searches[i].send(Trial(at, value_there, gradient_there, slope_there))
                except StopIteration as end:
                    chosen, cost[i] = end.value
                    del pending[i]
                    row = rows[i]
                    self._step[row], self.value[row], self._gradient[row] = chosen.step, chosen.value, chosen.gradient
        self.x[rows] = origin + self._step[rows, None] * direction
        self._fresh[rows] = True
        return cost


class History:
    """The last ``size`` moves ``s`` and gradient changes ``y`` of one problem in ``p`` unknowns, in a ring buffer.

    Not batched: the matrix-vector products of one problem fit in the processor's cache, those of a batch do not.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self.size, self.learned = size, 0
        self.moves, self.changes = like.new_empty(size, len(like)), like.new_empty(size, len(like))
        self.cross = like.new_zeros(size, size)  # products s_i y_j
        self.along = like.new_zeros(size)  # products s_i g with the gradient at the last direction
        self.newest: int | None = None  # index of a change whose products with older moves are not computed yet
        self.scale = like.new_ones(())

    def learn(self, move: Tensor, change: Tensor) -> None:
        """Append a move and its gradient change, if the curvature is positive, as torch does."""
        curvature = change @ move
        if not curvature > 1e-10:
            return
        at = self.learned % self.size
        self.learned += 1
        self.moves[at], self.changes[at] = move, change
        self.cross[at, at], self.newest = curvature, at
        self.scale = curvature / (change @ change)

    def direction(self, gradient: Tensor) -> Tensor:
        """Minus the approximate inverse Hessian times ``gradient`` ``(p,)``, taken at the end of the last learned move.

        The two-loop recursion (Nocedal & Wright, algorithm 7.4), with each loop as the triangular system that it solves (Byrd,
        Nocedal & Schnabel 1994, theorem 2.2): four matrix products instead of hundreds of vector products.
        """
        filled = min(self.learned, self.size)
        if not filled:
            return -gradient
        first = self.learned % self.size if self.learned > self.size else 0  # index of the oldest
        moves, changes = self.moves[:filled], self.changes[:filled]
        along = moves @ gradient
        if (at := self.newest) is not None:  # y is a difference of gradients, so its products are differences too
            curvature = self.cross[at, at].clone()
            self.cross[:filled, at] = along - self.along[:filled]
            self.cross[at, at], self.newest = curvature, None
        self.along[:filled] = along
        cross = self.cross[:filled, :filled].roll((-first, -first), (0, 1))
        factors = solve_triangular(cross, -along.roll(-first)[:, None], upper=True)[:, 0]
        r: Tensor = self.scale * (-gradient - changes.T @ factors.roll(first))
        left = cross.diagonal() * factors - (changes @ r).roll(-first)
        r += moves.T @ solve_triangular(cross.T, left[:, None], upper=False)[:, 0].roll(first)
        return r
