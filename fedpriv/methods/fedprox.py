"""FedProx (Li et al., MLSys 2020), and FedProx with local fine-tuning before the test.

min_x  L_k(x) + mu/2 ||x - x_g||^2        with x_g the received model (eq. 2); see :mod:`fedpriv.objectives.fedprox`
"""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.methods.fine_tuning import FineTuned
from fedpriv.objectives.fedprox import FedProx as Objective


@register("fedprox")
class FedProx(Method):
    """FedAvg with a proximal term to the received model in the clients' loss."""

    paper = "Li et al., MLSys 2020"
    objective_class = Objective


@register("fedprox-ft")
class FedProxFineTuned(FineTuned, FedProx):
    """FedProx; before its test, each client fine-tunes a copy of the global model on its data."""

    paper = "Li et al., MLSys 2020; protocol of Collins et al., ICML 2021"
