"""SimCLR (Chen et al., ICML 2020, eq. 1): a contrastive loss of two views, without labels; as published, and as in L-DAWA's code.

L_i = -s_ij / t + log sum_k exp(s_ik / t)        with s the cosine similarity, and j the other view of sample i
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import params
from fedpriv.objectives import register
from fedpriv.objectives.two_views import TwoViews


def nt_xent(first: Tensor, second: Tensor, temperature: float, symmetric: bool = True, include_self: bool = False) -> Tensor:
    """The normalised temperature-scaled cross-entropy of two views, in nats, averaged over the anchors i.

    Args:
        first, second: projections of the two views ``(B, k)``.
        temperature: t.
        symmetric: whether the anchors are the samples of both views, or of the first only.
        include_self: whether the sum is over all 2B projections, including the anchor itself, or over the 2B - 1 others. The
            anchor's term is the constant e^(1/t), which keeps the loss above log 2 even if the views agree.
    """
    size = len(first)
    a, b = F.normalize(first, dim=1), F.normalize(second, dim=1)
    aa, ab, ba, bb = (torch.einsum("ik,jk->ij", x, y) / temperature for x in (a, b) for y in (a, b))
    if not include_self:
        others = ~torch.eye(size, dtype=torch.bool, device=first.device)
        aa, bb = (scores[others].view(size, size - 1) for scores in (aa, bb))
    scores = [torch.cat([ab, aa], dim=1), torch.cat([ba, bb], dim=1)][: 2 if symmetric else 1]
    return F.cross_entropy(torch.cat(scores), torch.arange(size, device=first.device).repeat(len(scores)))


@params
class SimClrParams:
    """Options of SimCLR's loss; L-DAWA's code computes ``symmetric: false, include_self: true``."""

    temperature: float = Field(0.07, gt=0, description="t (L-DAWA's configs; 0.5 is common for CIFAR)")
    symmetric: bool = Field(True, description="anchors of both views (Chen et al.); false: of the first only (L-DAWA's code)")
    include_self: bool = Field(
        False, description="the denominator contains the anchor itself, too (L-DAWA's code), which keeps the loss above log 2"
    )


@register("simclr")
class SimClr(TwoViews):
    """Two views of an image agree, and differ from those of other images in the batch; without labels."""

    paper = "Chen et al., ICML 2020; as in Rehman et al. (L-DAWA), ICCV 2023"
    Params = SimClrParams
    no_dp = "its loss compares the samples of a batch, so there are no per-sample gradients"

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        return nt_xent(first, second, self.params.temperature, self.params.symmetric, self.params.include_self)
