"""Local fine-tuning before the test (the "+FT" rows of Collins et al., ICML 2021).

Each client fine-tunes a copy of the global model on its data, and is tested with the copy. Fine-tuning minimises the method's
loss, without proximal terms and control variates, with a new optimiser. It changes no state of the client or the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from fedpriv.methods.base import Method, Phase, params, phase
from fedpriv.models.net import AFTER_ENCODER, ROLES


@params
class FineTuneParams:
    """Options of fine-tuning."""

    ft_epochs: int = Field(10, ge=1, description="epochs of fine-tuning (FedRep, supplement)")
    ft_steps: int | None = Field(
        None, ge=1, description="number of SGD steps, which replaces the epochs (one reading of `10 SGD` in MpFedcon sec. 5.1)"
    )
    ft_scope: Literal["head", "full"] = Field(
        "head", description="what is fine-tuned: projector and head (FedRep), or the whole net"
    )
    ft_when: Literal["final", "last"] = Field(
        "final",
        description="final: only before the test of the last round; last: before the test of each of the last eval.last rounds",
    )


class FineTuned(Method):
    """A mixin, named before the method: ``class FedAvgFineTuned(FineTuned, FedAvg)``."""

    Params = FineTuneParams
    needs_labels = "each client fine-tunes on them before it is tested"

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        return {
            **super().unused_options(params),
            **({} if params.ft_steps is None else {"ft_epochs": "ft_steps, which replaces it"}),
        }

    @property
    def averaged_rounds(self) -> int:
        return 1 if self.params.ft_when == "final" else super().averaged_rounds

    @property
    def tested_from(self) -> int:
        return self.train.rounds - self.averaged_rounds + 1

    def adaptation(self, round: int) -> Sequence[Phase]:
        if round < self.tested_from:
            return ()
        roles = ROLES if self.params.ft_scope == "full" else AFTER_ENCODER
        return [phase(*roles, epochs=self.params.ft_epochs, steps=self.params.ft_steps)]
