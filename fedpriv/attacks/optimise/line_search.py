"""The strong-Wolfe line search of ``torch.optim.LBFGS`` (Nocedal & Wright, algorithms 3.5 and 3.6), as a generator.

The generator yields the step to evaluate next, so that the points of many searches can be evaluated together. Follows
``_strong_wolfe`` of torch 2.15 (from Schmidt's minFunc) step for step.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

from torch import Tensor

C1, C2 = 1e-4, 0.9
"""Constants of sufficient decrease and curvature, as in torch."""


@dataclass
class Trial:
    """Value, gradient ``(p,)`` and slope along the direction at the point ``x + step * direction``."""

    step: float
    value: float
    gradient: Tensor
    slope: float


Search = Generator[float, Trial, tuple[Trial, int]]
"""Yields steps to evaluate, receives their trials, returns the chosen trial and the number of evaluations."""


def strong_wolfe(start: Trial, step: float, longest: float, tolerance_change: float, max_evaluations: int) -> Search:
    """Search from ``start`` (step 0), trying ``step`` first; ``longest`` is the direction's largest absolute entry."""
    trial = yield step
    evaluations = 1
    previous, count = start, 0
    bracket: list[Trial] = [start, trial]
    done = False

    def too_high(trial: Trial) -> bool:
        return trial.value > start.value + C1 * trial.step * start.slope

    def flat(trial: Trial) -> bool:
        return abs(trial.slope) <= -C2 * start.slope

    # Bracket a point that satisfies the conditions.
    while count < max_evaluations:
        if too_high(trial) or (count > 1 and trial.value >= previous.value):
            bracket = [previous, trial]
            break
        if flat(trial):
            bracket, done = [trial], True
            break
        if trial.slope >= 0:
            bracket = [previous, trial]
            break
        nearest, farthest = trial.step + 0.01 * (trial.step - previous.step), trial.step * 10
        step = cubic_minimum(previous, trial, nearest, farthest)
        previous = trial
        trial = yield step
        evaluations += 1
        count += 1
    else:
        bracket = [start, trial]

    # Narrow the bracket.
    stuck = False
    low = 0 if bracket[0].value <= bracket[-1].value else 1
    while not done and count < max_evaluations:
        left, right = sorted((bracket[0].step, bracket[1].step))
        if (right - left) * longest < tolerance_change:
            break
        step = cubic_minimum(bracket[0], bracket[1], left, right)
        margin = 0.1 * (right - left)
        if min(right - step, step - left) < margin:  # too near an end for much progress
            if stuck or step >= right or step <= left:
                step = right - margin if abs(step - right) < abs(step - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False

        trial = yield step
        evaluations += 1
        count += 1
        if too_high(trial) or trial.value >= bracket[low].value:
            bracket[1 - low] = trial
            low = 0 if bracket[0].value <= bracket[1].value else 1
        else:
            if flat(trial):
                done = True
            elif trial.slope * (bracket[1 - low].step - bracket[low].step) >= 0:
                bracket[1 - low] = bracket[low]
            bracket[low] = trial
    return bracket[low], evaluations


def cubic_minimum(a: Trial, b: Trial, left: float, right: float) -> float:
    """The minimum of the cubic through two trials, clipped to ``[left, right]``; the middle if the cubic has none."""
    if a.step > b.step:
        a, b = b, a
    try:
        d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.step - b.step)
        square = d1 * d1 - a.slope * b.slope
        if not square >= 0:  # also for NaN
            return (left + right) / 2
        d2 = math.sqrt(square)
        minimum = b.step - (b.step - a.step) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    except (ZeroDivisionError, OverflowError):
        return (left + right) / 2
    return min(max(minimum, left), right)
