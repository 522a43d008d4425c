"""The coordinate-wise trimmed mean (Yin et al., ICML 2018, def. 2): per entry, the mean without the smallest and largest uploads.

    w_j = mean of w_1j, ..., w_Kj without the b smallest and the b largest;    b = floor(trim K), trim < 1/2

With at most b bad clients, no entry is further out than a good client's. The numbers of samples have no effect.
Of a tensor that only some clients sent, K counts those.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import blocks
from fedpriv.aggregation.completing import by_senders
from fedpriv.config import part_of
from fedpriv.interfaces import params


def half(count: int) -> int:
    """What the median leaves out at each end of so many uploads: all but the one or the two in the middle."""
    return (count - 1) // 2


def mean_between(uploads: Uploads, trimmed: Callable[[int], int]) -> Tensor:
    """The mean of each column without the extremes ``(p,)``, of the clients that sent it.

    Args:
        trimmed: returns how many of so many smallest, and largest, uploads are left out; less than half.
    """
    out = torch.empty_like(uploads.previous)
    for clients, columns in by_senders(uploads):
        left_out = trimmed(len(clients))
        for where, block in blocks(uploads.by_columns, columns):
            out[where] = block[clients].sort(0).values[left_out : len(clients) - left_out].mean(0).to(out)
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
        row = mean_between(uploads, lambda count: part_of(count, self.params.trim))
        return Merged(row, memory, {"trimmed_mean/left_out": 2.0 * trimmed})
