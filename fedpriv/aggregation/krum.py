"""Multi-Krum (Blanchard et al., NeurIPS 2017): the mean of the uploads that are nearest to their neighbours.

    s_k = sum over the K - f - 2 uploads nearest to w_k of |w_k - w_i|^2;    w = mean of the m uploads with the smallest s_k

f is the number of bad clients that it is to hold against, which needs K >= 2 f + 3. m = K - f unless it is given; m = 1 is Krum.
The numbers of samples have no effect. BatchNorm's running statistics are no part of the distances. Of a tensor that only some
clients sent, the mean is that of the m who did, and in the distances their median stands for the others.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import Group, blocks, combine, parameter_groups
from fedpriv.aggregation.completing import by_senders, completed
from fedpriv.aggregation.rows import Rows
from fedpriv.aggregation.trimmed_mean import half, mean_between
from fedpriv.config import part_of
from fedpriv.interfaces import params


def pairwise(rows: Rows, slices: tuple[slice, ...]) -> Tensor:
    """Squared distances between the uploads ``(K, p)`` in the columns of ``slices``: ``(K, K)`` in float64."""
    distances = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for _, block in blocks(rows, slices):
        distances += torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist").square_()
    return distances


def scores(distances: Tensor, bad: int) -> Tensor:
    """The scores s ``(K,)`` of squared distances ``(K, K)`` for at most ``bad`` bad clients; K is at least ``2 bad + 3``."""
    nearest = distances.sort(1).values[:, 1 : len(distances) - bad - 1]  # without itself
    return nearest.sum(1)


@params
class KrumParams:
    """Options of multi-Krum."""

    bad: float = Field(0.2, ge=0, lt=0.5, description="share of the uploads of a round that may be bad; f is rounded down")
    keep: int | None = Field(None, ge=1, description="uploads in the mean, m; null: all but f")


@register("multi-krum")
class MultiKrum(Aggregation):
    """The mean of the uploads nearest to their neighbours; holds against a share of bad clients, fewer than half."""

    paper = "Blanchard et al., NeurIPS 2017"
    Params = KrumParams
    by_columns = True

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        count = len(uploads)
        bad = max(0, min(part_of(count, self.params.bad), (count - 3) // 2))
        kept = torch.arange(count)
        if count >= 3:
            (group,) = parameter_groups(uploads.space, "model")
            keep = min(self.params.keep or count, count - bad)
            rows = completed(uploads, mean_between(uploads, half) if uploads.senders else uploads.previous)
            kept = scores(pairwise(rows, group.slices), bad).cpu().argsort(stable=True)[:keep]
        row = uploads.previous.clone()
        for clients, columns in by_senders(uploads):
            if len(those := clients[torch.isin(clients, kept)]):
                weights = torch.zeros(count, dtype=torch.float64).index_fill(0, those, 1 / len(those))
                combine(uploads.by_columns, weights, [Group("sent", columns)], row)
        report = {"krum/holds_against": float(bad), "krum/left_out": float(count - len(kept))}
        return Merged(row, memory, report)
