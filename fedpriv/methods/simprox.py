"""SimProx (El-Niss et al., IEEE OJ-COMS 5, 2024): FedAvg's clients, and weights by similarity and update size.

The equations are in :mod:`fedpriv.aggregation.simprox` (eqs. 7-14).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from fedpriv.aggregation.simprox import SimProx as SimProxAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("simprox")
class SimProx(Method):
    """An upload's weight grows with its similarity to the others and shrinks with the size of its change."""

    paper = "El-Niss et al., IEEE OJ-COMS 5, 2024"
    aggregation_class = SimProxAggregation
    suggests: ClassVar[Mapping[str, Any]] = {"train.selection": "window"}
