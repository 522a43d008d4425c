"""SCAFFOLD (Karimireddy et al. 2020), and with local fine-tuning before the test."""

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
        uncorrected = getattr(params, "layers", None) == 0  # its halves may be others
        return {**super().unused_options(params), **(dict.fromkeys(("variate", "plain"), "layers=0") if uncorrected else {})}


@register("scaffold-ft")
class ScaffoldFineTuned(FineTuned, Scaffold):
    """SCAFFOLD, and each client fine-tunes a copy on its own data before it is tested."""

    paper = "Karimireddy et al., ICML 2020; protocol of Collins et al., ICML 2021"
