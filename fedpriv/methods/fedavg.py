"""FedAvg (McMahan et al. 2017) and FedAvg with local fine-tuning before the test."""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.methods.fine_tuning import FineTuned


@register("fedavg")
class FedAvg(Method):
    """One global model, averaged by the clients' numbers of samples."""

    paper = "McMahan et al., AISTATS 2017"


@register("fedavg-ft")
class FedAvgFineTuned(FineTuned, FedAvg):
    """FedAvg, and each client fine-tunes a copy on its own data before it is tested."""

    paper = "McMahan et al., AISTATS 2017; protocol of Collins et al., ICML 2021"
