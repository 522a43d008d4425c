"""FedDyn (Acar et al. 2021)."""

from __future__ import annotations

from fedpriv.aggregation.feddyn import FedDyn as Aggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.feddyn import FedDyn as Objective


@register("feddyn")
class FedDyn(Method):
    """A dynamic regulariser at the clients, and a server that adds their accumulated drift."""

    paper = "Acar et al., ICLR 2021"
    objective_class = Objective
    aggregation_class = Aggregation
