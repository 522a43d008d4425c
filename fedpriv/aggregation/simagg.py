"""The server part of SimAgg (Khan et al., BrainLes 2021): similarity weights, tensor by tensor.

weight_k = (u_k + v_k) / sum_j (u_j + v_j),    u_k ~ 1 / (epsilon + distance of w_k from the plain mean),    v_k ~ n_k
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import Group, blocks, buffer_groups, combine, parameter_groups
from fedpriv.aggregation.mean import client_weights, normalised
from fedpriv.interfaces import params


@params
class SimAggParams:
    """Options of SimAgg."""

    distance: Literal["abs", "sum"] = Field(
        "abs", description="distance from the mean: sum of absolute differences, or difference of sums (released code)"
    )
    epsilon: float = Field(1e-5, gt=0, description="added to a distance before it is inverted (released code)")


def distances_from_mean(rows: Tensor, groups: Sequence[Group], kind: Literal["abs", "sum"]) -> Tensor:
    """Distances of the uploads ``(K, p)`` from their plain mean: ``(G, K)`` in float64, in one pass over the matrix."""
    distances = rows.new_zeros(len(groups), len(rows), dtype=torch.float64)
    for index, group in enumerate(groups):
        for _, block in blocks(rows, group.slices):
            if kind == "abs":
                distances[index] += block.sub_(block.mean(0)).abs_().sum(1)
            else:
                distances[index] += block.sum(1)
    return distances if kind == "abs" else (distances - distances.mean(1, keepdim=True)).abs()


def weights(distances: Tensor, samples: Tensor, epsilon: float) -> Tensor:
    """The weights ``(G, K)``; those by samples alone if all distances are zero.

    Args:
        distances: from the plain mean ``(G, K)``.
        samples: the weights by samples v ``(K,)``, summing to one.
    """
    closeness = 1 / (epsilon + distances)
    closeness = closeness / closeness.sum(1, keepdim=True)
    return torch.where(distances.sum(1, keepdim=True) > 0, (closeness + samples) / 2, samples)


@register("simagg")
class SimAgg(Aggregation):
    """Each tensor of an upload is weighted by its closeness to the plain mean and by the client's number of samples."""

    paper = "Khan et al., BrainLes 2021"
    Params = SimAggParams

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' numbers of training samples ``(K,)``."""
        return client_weights(uploads, "samples")

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        rows, groups = uploads.rows, parameter_groups(uploads.space, "array")
        samples = normalised(self.weigh(uploads)).to(rows.device)
        by_tensor = weights(distances_from_mean(rows, groups, self.params.distance), samples, self.params.epsilon)
        row = combine(rows, by_tensor, groups, torch.empty_like(uploads.previous))
        report = {"simagg/tv_from_samples": float((by_tensor - samples).abs().sum(1).mean() / 2)}
        return Merged(combine(rows, samples, buffer_groups(uploads.space), row), memory, report)
