"""The interval of a mean by Student's t, as of paired differences over seeds or clients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LEVEL = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of at least two values, such as paired differences (Student's t)."""
    from scipy.stats import t

    mean, count = statistics.fmean(values), len(values)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return mean - half, mean + half
