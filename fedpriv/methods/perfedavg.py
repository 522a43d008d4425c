"""Per-FedAvg (Fallah et al. 2020): a global model trained to be good after one local step of each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Method, Phase, params, phase
from fedpriv.objectives.perfedavg import MetaGradient


@params
class PerFedAvgMethodParams:
    """Options of Per-FedAvg, without those of its step."""

    b: float = Field(
        0.001,
        gt=0,
        description="rate of the outer step, in place of train.lr (a public reimplementation's; with few epochs try 0.01)",
    )
    pers_steps: int = Field(
        1, ge=1, description="steps of plain SGD, of rate a, that a client takes on a copy before it is tested"
    )


@register("perfedavg")
class PerFedAvg(Method):
    """A global model that is trained for, and tested after, one local step of each client."""

    paper = "Fallah et al., NeurIPS 2020"
    Params = PerFedAvgMethodParams
    objective_class = MetaGradient
    fixed_objective = "clients are tested after a step that only its own objective trains for"
    replaced_keys: ClassVar[Mapping[str, str]] = {"train.lr": "method.b"}
    defaults: ClassVar[Mapping[str, Any]] = {"weights": "uniform"}

    def phases(self, round: int) -> Sequence[Phase]:
        return [replace(stretch, lr=self.params.b) for stretch in super().phases(round)]

    def adaptation(self, round: int) -> Sequence[Phase]:
        """``pers_steps`` steps of rate ``a`` on the client's training data, of plain SGD as the inner step that the model is
        trained for; none where ``a`` is 0."""
        rate = self.objective.params.a
        return [phase(epochs=1, steps=self.params.pers_steps, lr=rate, plain=True)] if rate else ()
