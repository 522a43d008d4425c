"""SimAgg (Khan et al. 2022): each tensor of an upload weighs by its closeness to the plain mean and by the samples behind it."""

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
        "abs", description="distance from the mean: sum of absolute differences, or difference of the sums (released code)"
    )
    epsilon: float = Field(1e-5, gt=0, description="added to a distance before it is inverted (released code)")


def distances_from_mean(rows: Tensor, groups: Sequence[Group], kind: Literal["abs", "sum"]) -> Tensor:
    """``(G, K)`` in float64: distances of uploads ``(K, p)`` from their plain mean; one pass over the matrix."""
    found = rows.new_zeros(len(groups), len(rows), dtype=torch.float64)
    for index, group in enumerate(groups):
        for _, block in blocks(rows, group.slices):
            if kind == "abs":
                found[index] += block.sub_(block.mean(0)).abs_().sum(1)
            else:
                found[index] += block.sum(1)
    return found if kind == "abs" else (found - found.mean(1, keepdim=True)).abs()


def weights(distances: Tensor, samples: Tensor, epsilon: float) -> Tensor:
    """(u + v) / sum(u + v), ``(G, K)``: u proportional to 1 / (epsilon + distance), v to the samples; v alone where all agree.

    Args:
        distances: ``(G, K)``.
        samples: ``(K,)``, summing to one.
    """
    closeness = 1 / (epsilon + distances)
    closeness = closeness / closeness.sum(1, keepdim=True)
    return torch.where(distances.sum(1, keepdim=True) > 0, (closeness + samples) / 2, samples)


@register("simagg")
class SimAgg(Aggregation):
    """Each tensor of an upload weighs by its closeness to the plain mean and by the client's samples."""

    paper = "Khan et al., BrainLes 2021"
    Params = SimAggParams

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' numbers of training samples ``(K,)``."""
        return client_weights(uploads, "samples")

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        rows, groups = uploads.rows, parameter_groups(uploads.space, "array")
        samples = normalised(self.weigh(uploads)).to(rows.device)
        found = weights(distances_from_mean(rows, groups, self.params.distance), samples, self.params.epsilon)
        row = combine(rows, found, groups, torch.empty_like(uploads.previous))
        report = {"simagg/tv_from_samples": float((found - samples).abs().sum(1).mean() / 2)}
        return Merged(combine(rows, samples, buffer_groups(uploads.space), row), memory, report)
