"""FedBN (Li et al., ICLR 2021): all layers are averaged except BatchNorm, which is private to each client."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Method, params


@params
class FedBNParams:
    """Options of FedBN."""

    statistics: Literal["local", "averaged"] = Field(
        "local", description="BatchNorm's running statistics: private to the client (paper), or averaged"
    )


@register("fedbn")
class FedBN(Method):
    """FedAvg with private BatchNorm layers: scales, shifts and, unless they are averaged, running statistics.

    This includes InstanceNorm layers with running statistics. Layers are found by module type. For a net without such layers,
    this is FedAvg, bit for bit; otherwise each client is tested with its own BatchNorm layers in the averaged net.
    """

    paper = "Li et al., ICLR 2021"
    Params = FedBNParams

    def select_shared(self) -> tuple[str, ...]:
        space, norms = self.context.space, self.context.norms
        averaged = {name for name in norms & set(space.names) if space[name].kind == "buffer"}
        private = norms - averaged if self.params.statistics == "averaged" else norms
        return tuple(name for name in super().select_shared() if name not in private)
