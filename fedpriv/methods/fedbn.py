"""FedBN (Li et al. 2021): all layers are averaged except BatchNorm, which stays with the client."""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("fedbn")
class FedBN(Method):
    """FedAvg, but each client keeps its own BatchNorm layers: scales, shifts and running statistics.

    They are found by module type. For a net without any, this is FedAvg, bit for bit; otherwise there is no global model, and
    each client is tested with its own layers in the averaged net.
    """

    paper = "Li et al., ICLR 2021"

    def select_shared(self) -> tuple[str, ...]:
        return tuple(name for name in super().select_shared() if name not in self.context.norms)
