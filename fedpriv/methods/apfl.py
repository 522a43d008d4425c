"""APFL (Deng et al., arXiv:2003.13461): each client is tested with a mixture of the global and its personal model.

    mixture = alpha v + (1 - alpha) w        with v the personal and w the global model

The training is in :mod:`fedpriv.objectives.apfl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedpriv.methods import register
from fedpriv.methods.base import Context, LocalUpdate, Method, Private, params
from fedpriv.objectives.apfl import ALPHA, PERSONAL, Mixed, mixed

LAST = "apfl.own"
"""Private state: the client's last ``w`` as a row ``(p,)``."""


@params
class ApflMethodParams:
    """Options of APFL's test."""

    test_with: Literal["global", "local"] = Field(
        "global",
        description="the w of the tested mixture: the new global model, or the one that the client trained last",
    )


@register("apfl")
class Apfl(Method):
    """A global model, and a personal model for each client. It is trained and tested only in a mixture with the global one."""

    paper = "Deng et al., arXiv:2003.13461"
    Params = ApflMethodParams
    objective_class = Mixed
    fixed_objective = "no other objective trains the mixture that clients are tested with"
    defaults: ClassVar[Mapping[str, Any]] = {"weights": "uniform"}

    def __init__(self, params: ApflMethodParams, context: Context, *parts: Any) -> None:
        super().__init__(params, context, *parts)
        self.tested_names = context.space.names

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        last = {LAST: initial.clone()} if self.params.test_with == "local" else {}
        return {**super().initial_private(client, initial), **last}

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {**super().keep(update), **({LAST: update.row} if self.params.test_with == "local" else {})}

    def client_state(self, row: Tensor, private: Private) -> dict[str, Tensor]:
        shared = private[LAST] if self.params.test_with == "local" else row
        space = self.context.space
        mixture = mixed(space, shared.to(row), private[PERSONAL].to(row), float(private[ALPHA]))
        space.renew_spectral_norms(mixture)
        return space.unpack(mixture)
