"""FedDyn (Acar et al., ICLR 2021, alg. 1): a dynamic regulariser in the clients' loss, and a drift correction at the server.

The equations are in :mod:`fedpriv.objectives.feddyn` and :mod:`fedpriv.aggregation.feddyn`.
"""

from __future__ import annotations

from fedpriv.aggregation.feddyn import FedDyn as Aggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.feddyn import FedDyn as Objective


@register("feddyn")
class FedDyn(Method):
    """A dynamic regulariser in the clients' loss; the server adds the accumulated drift of all clients to the mean."""

    paper = "Acar et al., ICLR 2021"
    objective_class = Objective
    aggregation_class = Aggregation
