"""FedOpt (Reddi et al., ICLR 2021): an adaptive optimiser at the server (:mod:`fedpriv.aggregation.fedopt`)."""

from __future__ import annotations

from fedpriv.aggregation.fedopt import FedOpt as Aggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("fedopt")
class FedOpt(Method):
    """FedAvg with an adaptive optimiser at the server: FedAdam, FedYogi or FedAdagrad."""

    paper = "Reddi et al., ICLR 2021"
    aggregation_class = Aggregation
