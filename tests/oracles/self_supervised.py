"""The losses of SimCLR and Barlow Twins from their definitions, entry by entry, in Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot, aa, bb = (math.fsum(x * y for x, y in zip(*pair, strict=True)) for pair in ((a, b), (a, a), (b, b)))
    return dot / math.sqrt(aa * bb)


def nt_xent(first: Rows, second: Rows, temperature: float, symmetric: bool, include_self: bool) -> float:
    """Mean over the anchors of the negative log share of the other view among the candidates."""
    n, every = len(first), [*first, *second]
    losses = []
    for i in range(2 * n if symmetric else n):
        candidates = [j for j in range(2 * n) if include_self or j != i]
        weights = {j: math.exp(cosine(every[i], every[j]) / temperature) for j in candidates}
        losses.append(-math.log(weights[(i + n) % (2 * n)] / math.fsum(weights.values())))
    return math.fsum(losses) / len(losses)


def barlow(first: Rows, second: Rows, weight: float, epsilon: float) -> float:
    n, d = len(first), len(first[0])

    def standardised(rows: Rows) -> list[list[float]]:
        columns = []
        for column in zip(*rows, strict=True):
            centre = math.fsum(column) / n
            spread = math.fsum((value - centre) ** 2 for value in column) / (n - 1)
            columns.append([(value - centre) / math.sqrt(spread + epsilon) for value in column])
        return columns

    a, b = standardised(first), standardised(second)
    total = 0.0
    for i in range(d):
        for j in range(d):
            c = math.fsum(x * y for x, y in zip(a[i], b[j], strict=True)) / n
            total += (c - 1) ** 2 if i == j else weight * c**2
    return total
