"""Metrics of two runs with the same seed: whose clients are better off, and what a run saves until the other's accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from fedpriv.experiments.results import Result

WINDOW = 5  # rounds; the smoothing of "rounds to target"
_ROUNDED = 1e-6  # results have 6 decimals, so a run may miss a mean of its own values by this much


def window(target: Result) -> int:
    """The number of rounds over which accuracy is smoothed to see when it reaches this run's final accuracy.

    :data:`WINDOW`, but no more than the final accuracy is a mean of: a run that rises until its end would never reach it.
    """
    return min(WINDOW, int(target.summary["averaged_rounds"]))


def reach(result: Result, target: float, rounds: int | None = None) -> tuple[int, int] | None:
    """The first evaluated round whose smoothed accuracy reaches ``target``, and the bytes until then (both ways, with round 0).

    Smoothed: the mean over the evaluations of the last ``rounds`` rounds, including the round itself: five evaluations where
    every round is evaluated, a single one where only every fifth is. By default :func:`window` of the run itself.
    """
    if result.tested_at_end:
        return None
    points, width = result.tested(), window(result) if rounds is None else rounds
    for number, _ in points:
        smoothed = statistics.fmean(accuracy for other, accuracy in points if number - width < other <= number)
        if smoothed >= target - _ROUNDED:
            at = result.curve["round"].index(number)
            return number, result.curve["bytes_up"][at] + result.curve["bytes_down"][at]
    return None


def until_as_good(ours: Result, theirs: Result) -> tuple[int, int] | None:
    """The round in which ``ours`` reaches the final accuracy of ``theirs``, and the bytes until then; ``None``: it never does."""
    return reach(ours, theirs.summary["accuracy"], window(theirs))


def client_differences(ours: Result, theirs: Result) -> list[float]:
    """Accuracy in ``ours`` minus that in ``theirs``, of each client that was tested in both.

    Empty where the runs differ in their partition, so that they are not the same clients.
    """
    own, other = ours.summary["accuracy_per_client"], theirs.summary["accuracy_per_client"]
    if ours.partition_hash != theirs.partition_hash or len(own) != len(other):
        return []
    return [a - b for a, b in zip(own, other, strict=True) if a is not None and b is not None]


def clients_better(ours: Result, theirs: Result) -> float | None:
    """Share of the clients with a strictly higher accuracy in ``ours``, among those tested in both; ``None`` without any."""
    differences = client_differences(ours, theirs)
    return statistics.fmean(difference > 0 for difference in differences) if differences else None


def speed_up(ours: Result, theirs: Result) -> float | None:
    """Rounds until ``theirs`` reaches its own final accuracy, over the rounds until ``ours`` does.

    If ``ours`` never does, all its rounds count: the value is then an upper bound. ``None`` where ``theirs`` never does, and
    where ``ours`` is tested at its end only, so that the round in which it did is not known.
    """
    both = _both(ours, theirs)
    return both and both[1][0] / both[0][0]


def bytes_saved(ours: Result, theirs: Result) -> float | None:
    """Share of the bytes, counted both ways with round 0, that ``ours`` saves until that accuracy; with the same exceptions.

    ``None`` also where ``theirs`` sends none.
    """
    both = _both(ours, theirs)
    return 1 - both[0][1] / both[1][1] if both and both[1][1] else None


def _both(ours: Result, theirs: Result) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Rounds and bytes of both until the final accuracy of ``theirs``."""
    its = until_as_good(theirs, theirs)
    if its is None or ours.tested_at_end:
        return None
    at_the_end = ours.summary["rounds"], ours.summary["bytes_up"] + ours.summary["bytes_down"]
    return until_as_good(ours, theirs) or at_the_end, its


PAIRED: dict[str, Callable[[Result, Result], float | None]] = {
    "clients_better": clients_better,
    "speed_up": speed_up,
    "bytes_saved": bytes_saved,
}
"""Metrics of both runs of a claim, which are compared with a value."""
REACHES = ("speed_up", "bytes_saved")
"""Metrics until an accuracy is reached. Where the first run never reaches it, the value is an upper bound."""


def why_not(metric: str, ours: Result, theirs: Result) -> str:
    """Why two runs do not have the metric, in a few words; empty: no special reason."""
    if metric in REACHES and ours.tested_at_end:
        return f"{ours.label} is tested after its last rounds only"
    if metric in REACHES and until_as_good(theirs, theirs) is None:
        return f"{theirs.label} has no round in which it reaches its own accuracy"
    if metric == "clients_better" and ours.partition_hash != theirs.partition_hash:
        return f"the clients of {ours.label} and {theirs.label} have other data"
    return ""
