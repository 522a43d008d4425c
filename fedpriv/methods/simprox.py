"""SimProx (El-Niss et al. 2024): FedAvg's clients, and a server that weighs by similarity and by the size of the update."""

from collections.abc import Mapping
from typing import Any, ClassVar

from fedpriv.aggregation.simprox import SimProx as SimProxAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("simprox")
class SimProx(Method):
    """Plain local SGD; uploads weigh by their similarity to the others and by how little they moved."""

    paper = "El-Niss et al., IEEE OJ-COMS 5, 2024"
    aggregation_class = SimProxAggregation
    suggests: ClassVar[Mapping[str, Any]] = {"train.selection": "window"}
