"""The coordinate-wise trimmed mean (Yin et al., ICML 2018, def. 2): per entry, the mean without the smallest and largest uploads.

    w_j = mean of w_1j, ..., w_Kj without the b smallest and the b largest;    b = floor(trim K), trim < 1/2

With at most b bad clients, no entry is further out than a good client's. The numbers of samples have no effect.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import blocks
from fedpriv.aggregation.rows import Rows
from fedpriv.config import part_of
from fedpriv.interfaces import params


def mean_between(rows: Rows, trimmed: int, out: Tensor) -> Tensor:
    """Write into ``out`` ``(p,)``, for each column of ``rows`` ``(K, p)``, the mean without the extremes; return ``out``.

    Args:
        trimmed: how many of the smallest, and of the largest, are left out; less than K/2.
    """
    for where, block in blocks(rows, [slice(0, len(out))]):
        out[where] = block.sort(0).values[trimmed : len(block) - trimmed].mean(0).to(out)
    return out


@params
class TrimmedMeanParams:
    """Options of the trimmed mean."""

    trim: float = Field(0.2, ge=0, lt=0.5, description="share of the uploads that is left out at each end, per entry")


@register("trimmed-mean")
class TrimmedMean(Aggregation):
    """The mean without the smallest and largest entries; holds against the share of clients that is trimmed."""

    paper = "Yin et al., ICML 2018"
    Params = TrimmedMeanParams
    by_columns = True

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        trimmed = part_of(len(uploads), self.params.trim)
        row = mean_between(uploads.by_columns, trimmed, torch.empty_like(uploads.previous))
        return Merged(row, memory, {"trimmed_mean/left_out": 2.0 * trimmed})
