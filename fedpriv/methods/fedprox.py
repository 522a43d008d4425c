"""FedProx (Li et al. 2020), and with local fine-tuning before the test."""

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
    """FedProx, and each client fine-tunes a copy on its own data before it is tested."""

    paper = "Li et al., MLSys 2020; protocol of Collins et al., ICML 2021"
