"""FedNova (Wang et al., NeurIPS 2020): updates are normalised by local steps (:mod:`fedpriv.aggregation.fednova`)."""

from __future__ import annotations

from fedpriv.aggregation.fednova import FedNova as Aggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("fednova")
class FedNova(Method):
    """FedAvg; each update is normalised by the client's number of local steps."""

    paper = "Wang et al., NeurIPS 2020"
    aggregation_class = Aggregation
