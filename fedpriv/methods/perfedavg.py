"""Per-FedAvg (Fallah et al., NeurIPS 2020): a global model that is trained for the loss after one local step.

min_w  mean_k L_k(w - a grad L_k(w))        the gradients are in :mod:`fedpriv.objectives.perfedavg`
"""

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
    """Options of Per-FedAvg's outer step and of its test."""

    b: float = Field(
        0.001,
        gt=0,
        description="learning rate of the outer step, which replaces train.lr (default of a public reimplementation; with few "
        "epochs try 0.01)",
    )
    pers_steps: int = Field(
        1, ge=1, description="steps of plain SGD with rate a that a client takes on a copy of the model before its test"
    )


@register("perfedavg")
class PerFedAvg(Method):
    """A global model that is trained to be good after one local step of a client, and is tested after such steps."""

    paper = "Fallah et al., NeurIPS 2020"
    Params = PerFedAvgMethodParams
    objective_class = MetaGradient
    fixed_objective = "no other objective trains the model to be good after one local step"
    replaced_keys: ClassVar[Mapping[str, str]] = {"train.lr": "method.b"}
    defaults: ClassVar[Mapping[str, Any]] = {"weights": "uniform"}

    def phases(self, round: int) -> Sequence[Phase]:
        return [replace(phase, lr=self.params.b) for phase in super().phases(round)]

    def adaptation(self, round: int) -> Sequence[Phase]:
        """``pers_steps`` steps of plain SGD with rate ``a``, like the inner step of training; none if ``a`` is 0."""
        rate = self.objective.params.a
        return [phase(epochs=1, steps=self.params.pers_steps, lr=rate, plain=True)] if rate else ()
