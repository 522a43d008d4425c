"""FedAvg (McMahan et al. 2017) and FedAvg with local fine-tuning before the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Method, Phase, params, phase
from fedpriv.models.net import ROLES


@register("fedavg")
class FedAvg(Method):
    """One global model, averaged by the clients' numbers of samples."""

    paper = "McMahan et al., AISTATS 2017"


@params
class FineTuneParams:
    """Options of the "+FT" rows.

    ``ft_scope`` head: projector and head learn, the encoder is frozen (FedRep's protocol). ``ft_when`` final: tested with
    fine-tuning after the last round only; last: in each of the last ``eval.last`` rounds.
    """

    ft_epochs: int = Field(10, ge=1, description="epochs of fine-tuning (FedRep, supplement)")
    ft_scope: Literal["head", "full"] = Field("head", description="what is fine-tuned: projector and head, or the whole net")
    ft_when: Literal["final", "last"] = Field(
        "final", description="after the last round, or in each of the last eval.last rounds"
    )


@register("fedavg-ft")
class FedAvgFineTuned(FedAvg):
    """FedAvg, and each client fine-tunes a copy on its own data before it is tested."""

    paper = "McMahan et al., AISTATS 2017; protocol of Collins et al., ICML 2021"
    Params = FineTuneParams

    @property
    def averaged_rounds(self) -> int:
        return 1 if self.params.ft_when == "final" else super().averaged_rounds

    @property
    def tested_from(self) -> int:
        return self.train.rounds - self.averaged_rounds + 1

    def adaptation(self, round: int) -> Sequence[Phase]:
        if round < self.tested_from:
            return ()
        roles = ROLES if self.params.ft_scope == "full" else ("projector", "predictor", "head")
        return [phase(*roles, epochs=self.params.ft_epochs)]
