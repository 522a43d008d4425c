"""The coordinate-wise median (Yin et al., ICML 2018, def. 1): each entry of the next model is the median of the uploads' entries.

    w_j = median(w_1j, ..., w_Kj);    of an even number of uploads, the mean of the two in the middle

With fewer than K/2 bad clients, each entry lies between two good clients' entries. The numbers of samples have no effect.
Of a tensor that only some clients sent, K counts those.
"""

from __future__ import annotations

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.trimmed_mean import half, mean_between


@register("median")
class Median(Aggregation):
    """The median of the uploads, entry by entry; holds against fewer than half of the clients."""

    paper = "Yin et al., ICML 2018"
    by_columns = True

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        return Merged(mean_between(uploads, half), memory)
