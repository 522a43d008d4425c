"""FedAvg (McMahan et al., AISTATS 2017, alg. 1), and FedAvg with local fine-tuning before the test.

w <- sum_k (n_k / n) w_k        with w_k trained from w by local SGD on the n_k samples of client k
"""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.methods.fine_tuning import FineTuned


@register("fedavg")
class FedAvg(Method):
    """One global model: the mean of the clients' models, weighted by their numbers of samples."""

    paper = "McMahan et al., AISTATS 2017"


@register("fedavg-ft")
class FedAvgFineTuned(FineTuned, FedAvg):
    """FedAvg; before its test, each client fine-tunes a copy of the global model on its data."""

    paper = "McMahan et al., AISTATS 2017; protocol of Collins et al., ICML 2021"
