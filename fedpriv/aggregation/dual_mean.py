"""The server part of FedSiam-DA (arXiv 2211.09421, eqs. 13-16): a mean, then a mean weighted by the cosines with the first.

    mbar = sum_k a_k w_k;   c_k = <w_k, mbar> / (|w_k| |mbar|);   xi_k = c_k / sum_j c_j;   w = sum_k xi_k w_k

All uploads of a round start from one model, so their cosines are close to one, and the weights close to 1/K. The round's record
has the distance between the two means as ``dual/moved``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import blocks, buffer_groups, exact_products, parameter_groups
from fedpriv.aggregation.mean import client_weights, normalised
from fedpriv.interfaces import params

SMALLEST_SUM = 1e-8
"""If the cosines sum to less, the result is the first mean."""

Negative = Literal["clamp", "paper"]


@dataclass(frozen=True)
class Weights:
    """The weights of the second mean, in float64.

    Attributes:
        second: xi ``(K,)``, summing to one.
        fell_back: whether they are the weights of the first mean, as the cosines sum to less than :data:`SMALLEST_SUM`.
    """

    second: Tensor
    fell_back: bool


def dual_weights(cosines: Tensor, first: Tensor, negative: Negative = "clamp") -> Weights:
    """Eq. 15: ``xi_k = c_k / sum_j c_j``.

    Args:
        cosines: c ``(K,)``.
        first: the weights of the first mean ``(K,)``, summing to one.
        negative: an upload with a negative cosine gets weight 0 (clamp), or a negative weight (paper).
    """
    kept = cosines.clamp(min=0) if negative == "clamp" else cosines
    total = float(kept.sum())
    return Weights(first, True) if total < SMALLEST_SUM else Weights(kept / total, False)


def weighted_sum(rows: Tensor, weights: Tensor, slices: Sequence[slice]) -> Tensor:
    """``sum_k weights_k rows_k`` of ``(K, p)`` in the columns of ``slices``, and 0 elsewhere: ``(p,)`` in float64."""
    total = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    weights = weights.to(total)
    for where, block in blocks(rows, slices):
        total[where] = weights @ block
    return total


@params
class DualParams:
    """Options of the dual aggregation."""

    pass1: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the first mean: equal (eq. 13), or by samples (the text's 'consistent with FedAvg')"
    )
    negative: Literal["clamp", "paper"] = Field(
        "clamp", description="an upload with a negative cosine has weight 0 (not in the paper), or a negative weight (eq. 15)"
    )


@register("dual")
class DualMean(Aggregation):
    """A mean, then a mean weighted by each upload's cosine similarity to the first."""

    paper = "FedSiam-DA, arXiv 2211.09421"
    Params = DualParams

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The weights of the first mean ``(K,)``, not normalised."""
        return client_weights(uploads, self.params.pass1)

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        """Merge as in eqs. 13-16.

        BatchNorm's running statistics do not enter the cosines, and always have the clamped weights, so that no variance becomes
        negative.
        """
        first = normalised(self.weigh(uploads))
        trained = parameter_groups(uploads.space, "model")
        slices = [part for group in trained for part in group.slices]
        mean = weighted_sum(uploads.rows, first, slices)
        inner = exact_products(uploads.rows, mean, trained).together()
        norms = (inner.own[0] * inner.reference).sqrt().cpu()
        cosines = torch.where(norms > 0, (inner.cross[0].cpu() / norms).clamp(-1, 1), 0.0)
        weights = dual_weights(cosines, first, self.params.negative)
        moved = weighted_sum(uploads.rows, weights.second - first, slices)
        buffers = [part for group in buffer_groups(uploads.space) for part in group.slices]
        row = weighted_sum(uploads.rows, weights.second, slices)
        row += weighted_sum(uploads.rows, dual_weights(cosines, first).second, buffers)
        length = float(mean.norm())
        report = {
            "dual/tv": float((weights.second - first).abs().sum()) / 2,
            "dual/moved": float(moved.norm()) / length if length else 0.0,
            "dual/cosine_min": float(cosines.min()),
            "dual/cosine_max": float(cosines.max()),
            "dual/negative": float((cosines < 0).sum()),
            "dual/fell_back": float(weights.fell_back),
        }
        return Merged(row.to(uploads.rows), memory, report)
