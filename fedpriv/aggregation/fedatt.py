"""The server part of FedAtt (Ji et al., IJCNN 2019): a step towards the uploads, tensor by tensor, with attention weights.

w <- w - step sum_k alpha_k (w - w_k),        alpha = softmax over clients of ||w - w_k||
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import buffer_groups, combine, parameter_groups, squared_distances
from fedpriv.aggregation.mean import normalised
from fedpriv.interfaces import params


@params
class FedAttParams:
    """Options of FedAtt."""

    step: float = Field(1.2, gt=0, description="epsilon, the server's step size (released code: 1.2)")
    dp: float = Field(0.0, ge=0, description="standard deviation of noise on the new weights (released code: .001)")


def attention(distances: Tensor) -> Tensor:
    """Softmax over the clients of their distances ``(G, K)``: more distant clients have larger weights."""
    return torch.softmax(distances, 1)


@register("fedatt")
class FedAtt(Aggregation):
    """A step towards the uploads, tensor by tensor; the more distant an upload, the larger its weight."""

    paper = "Ji et al., IJCNN 2019"
    Params = FedAttParams

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        rows, start, groups = uploads.rows, uploads.previous, parameter_groups(uploads.space, "array")
        weights = attention(squared_distances(rows, start, groups).sqrt())
        row = combine(rows, weights, groups, torch.empty_like(start))
        for group in groups:
            for part in group.slices:
                row[part] = torch.lerp(start[part], row[part], self.params.step)
        if self.params.dp:
            generator = self.context.generator(f"fedatt {uploads.round}")
            for group in groups:
                for part in group.slices:
                    noise = torch.randn(part.stop - part.start, generator=generator)
                    row[part] += (self.params.dp * noise).to(row)
        plain = normalised(self.weigh(uploads)).to(rows.device)
        tv = float((weights - 1 / len(uploads)).abs().sum(1).mean() / 2)
        return Merged(combine(rows, plain, buffer_groups(uploads.space), row), memory, {"fedatt/tv": tv})
