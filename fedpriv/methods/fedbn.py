"""FedBN (Li et al. 2021): all layers are averaged except BatchNorm, which stays with the client."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Method, params


@params
class FedBNParams:
    """Options of FedBN."""

    statistics: Literal["local", "averaged"] = Field(
        "local", description="BatchNorm's running statistics: they stay with the client, too (paper), or are averaged"
    )


@register("fedbn")
class FedBN(Method):
    """FedAvg, but each client keeps its own BatchNorm layers: scales, shifts and, unless they are averaged, running statistics.

    So are InstanceNorm layers that keep running statistics. They are found by module type. For a net without any, this is FedAvg,
    bit for bit; otherwise there is no global model, and each client is tested with its own layers in the averaged net.
    """

    paper = "Li et al., ICLR 2021"
    Params = FedBNParams

    def select_shared(self) -> tuple[str, ...]:
        space, norms = self.context.space, self.context.norms
        averaged = {name for name in norms & set(space.names) if space[name].kind == "buffer"}
        own = norms - averaged if self.params.statistics == "averaged" else norms
        return tuple(name for name in super().select_shared() if name not in own)
