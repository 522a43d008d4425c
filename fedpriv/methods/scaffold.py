"""SCAFFOLD (Karimireddy et al., ICML 2020, alg. 1), and SCAFFOLD with local fine-tuning before the test.

The equations are in :mod:`fedpriv.objectives.scaffold` and :mod:`fedpriv.aggregation.scaffold`.
"""

from __future__ import annotations

from typing import Any

from fedpriv.aggregation.scaffold import Scaffold as Aggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.methods.fine_tuning import FineTuned
from fedpriv.objectives.scaffold import Scaffold as Objective


@register("scaffold")
class Scaffold(Method):
    """Local gradients are corrected by control variates, which double the traffic."""

    paper = "Karimireddy et al., ICML 2020"
    objective_class = Objective
    aggregation_class = Aggregation

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        uncorrected = getattr(params, "layers", None) == 0  # another aggregation may have no such option
        return {**super().unused_options(params), **(dict.fromkeys(("variate", "plain"), "layers=0") if uncorrected else {})}


@register("scaffold-ft")
class ScaffoldFineTuned(FineTuned, Scaffold):
    """SCAFFOLD; before its test, each client fine-tunes a copy of the global model on its data."""

    paper = "Karimireddy et al., ICML 2020; protocol of Collins et al., ICML 2021"
