"""FedNova (Wang et al. 2020)."""

from __future__ import annotations

from fedpriv.aggregation.fednova import FedNova as Aggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("fednova")
class FedNova(Method):
    """FedAvg whose updates are normalised by the clients' numbers of steps."""

    paper = "Wang et al., NeurIPS 2020"
    aggregation_class = Aggregation
