"""Metrics of two runs of the same seed: whose clients are better off, and what one saves on the way to the other's accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from fedpriv.experiments.results import Result

WINDOW = 5  # rounds; the smoothing of "rounds to target"


def reach(result: Result, target: float) -> tuple[int, int] | None:
    """The first evaluated round whose smoothed accuracy reaches ``target``, and the bytes until then (both ways, with round 0).

    Smoothed: the mean over the evaluations of the last :data:`WINDOW` rounds, including the round itself: five evaluations where
    every round is evaluated, a single one where only every fifth is.
    """
    if result.tested_at_end:
        return None
    points = result.tested()
    for number, _ in points:
        if statistics.fmean(accuracy for other, accuracy in points if number - WINDOW < other <= number) >= target:
            at = result.curve["round"].index(number)
            return number, result.curve["bytes_up"][at] + result.curve["bytes_down"][at]
    return None


def client_differences(ours: Result, theirs: Result) -> list[float]:
    """Accuracy in ``ours`` less that in ``theirs``, of each client that was tested in both.

    Empty where the runs differ in their number of clients, so that they are not the same ones.
    """
    own, other = ours.summary["accuracy_per_client"], theirs.summary["accuracy_per_client"]
    if len(own) != len(other):
        return []
    return [a - b for a, b in zip(own, other, strict=True) if a is not None and b is not None]


def clients_better(ours: Result, theirs: Result) -> float | None:
    """Share of the clients with a strictly higher accuracy in ``ours``, among those tested in both; ``None`` without any."""
    differences = client_differences(ours, theirs)
    return statistics.fmean(difference > 0 for difference in differences) if differences else None


def speed_up(ours: Result, theirs: Result) -> float | None:
    """Rounds until ``theirs`` reaches its own final accuracy, over the rounds until ``ours`` does.

    If ``ours`` never does, all its rounds count: the value is then an upper bound. ``None`` where ``theirs`` never does.
    """
    its = reach(theirs, theirs.summary["accuracy"])
    return its and its[0] / _reached(ours, theirs)[0]


def bytes_saved(ours: Result, theirs: Result) -> float | None:
    """Share of the bytes, counted both ways with round 0, that ``ours`` saves until that accuracy; with the same exceptions."""
    its = reach(theirs, theirs.summary["accuracy"])
    return its and 1 - _reached(ours, theirs)[1] / its[1]


def _reached(ours: Result, theirs: Result) -> tuple[int, int]:
    at_the_end = ours.summary["rounds"], ours.summary["bytes_up"] + ours.summary["bytes_down"]
    return reach(ours, theirs.summary["accuracy"]) or at_the_end


PAIRED: dict[str, Callable[[Result, Result], float | None]] = {
    "clients_better": clients_better,
    "speed_up": speed_up,
    "bytes_saved": bytes_saved,
}
"""Metrics that a claim computes from both its runs, and compares with a value."""
REACHES = ("speed_up", "bytes_saved")
"""Those up to an accuracy, which the first run may never reach; the value is then a bound in its favour."""
