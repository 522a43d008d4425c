"""The weighted mean."""

from collections.abc import Sequence

import torch
from torch import Tensor


def normalised(weights: Sequence[float]) -> Tensor:
    """Weights ``(K,)`` in float64 that sum to one.

    Raises:
        ValueError: where they are negative or sum to nothing.
    """
    values = torch.tensor(weights, dtype=torch.float64)
    if not len(values) or values.min() < 0 or values.sum() <= 0:
        raise ValueError(f"aggregation weights must be non-negative and not all zero, got {list(weights)}")
    return values / values.sum()


def weighted_mean(rows: Tensor, weights: Sequence[float]) -> Tensor:
    """``sum_k w_k rows_k / sum_k w_k`` of the uploads ``(K, p)``: one product, ``(p,)``."""
    return normalised(weights).to(rows) @ rows
