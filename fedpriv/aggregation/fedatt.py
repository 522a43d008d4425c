"""FedAtt (Ji et al. 2019): the server takes a step towards each tensor of the uploads, weighed by attention to its distance."""

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

    step: float = Field(1.2, gt=0, description="epsilon, how far the server steps (released code)")
    dp: float = Field(0.0, ge=0, description="standard deviation of noise on the new weights (released code: .001)")


def attention(distances: Tensor) -> Tensor:
    """Softmax over clients of the distances ``(G, K)``: clients that are further away weigh more."""
    return torch.softmax(distances, 1)


@register("fedatt")
class FedAtt(Aggregation):
    """A step towards each tensor of the uploads, those further away weighing more (Frobenius norms)."""

    paper = "Ji et al., IJCNN 2019"
    Params = FedAttParams

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        rows, start, groups = uploads.rows, uploads.previous, parameter_groups(uploads.space, "array")
        found = attention(squared_distances(rows, start, groups).sqrt())
        row = combine(rows, found, groups, torch.empty_like(start))
        for group in groups:
            for part in group.slices:
                row[part] = torch.lerp(start[part], row[part], self.params.step)
        if self.params.dp:
            drawn = self.context.generator(f"fedatt {uploads.round}")
            for group in groups:
                for part in group.slices:
                    noise = torch.randn(part.stop - part.start, generator=drawn)
                    row[part] += (self.params.dp * noise).to(row)
        plain = normalised(self.weigh(uploads)).to(rows.device)
        tv = float((found - 1 / len(uploads)).abs().sum(1).mean() / 2)
        return Merged(combine(rows, plain, buffer_groups(uploads.space), row), memory, {"fedatt/tv": tv})
