"""APFL (Deng et al. 2020): each client is tested with a mixture of the global model and its personal one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedpriv.methods import register
from fedpriv.methods.base import Context, LocalUpdate, Method, Private, params
from fedpriv.objectives.apfl import ALPHA, PERSONAL, Mixed, mixed

OWN = "apfl.own"
"""The client's last ``w`` as a row ``(p,)``."""


@params
class ApflMethodParams:
    """Options of APFL, without those of its step."""

    test_with: Literal["global", "local"] = Field(
        "global",
        description="model that is mixed with the personal one for the test: the new global model, or the client's last w",
    )


@register("apfl")
class Apfl(Method):
    """A global model, and a personal model per client, trained and tested in a mixture with it."""

    paper = "Deng et al., arXiv:2003.13461"
    Params = ApflMethodParams
    objective_class = Mixed
    fixed_objective = "clients are tested with a mixture that only its own objective trains"
    defaults: ClassVar[Mapping[str, Any]] = {"weights": "uniform"}

    def __init__(self, params: ApflMethodParams, context: Context, *halves: Any) -> None:
        super().__init__(params, context, *halves)
        self.tested_names = context.space.names

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        own = {OWN: initial.clone()} if self.params.test_with == "local" else {}
        return {**super().initial_private(client, initial), **own}

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {**super().keep(update), **({OWN: update.row} if self.params.test_with == "local" else {})}

    def client_state(self, row: Tensor, private: Private) -> dict[str, Tensor]:
        shared = private[OWN] if self.params.test_with == "local" else row
        space = self.context.space
        mixture = mixed(space, shared.to(row), private[PERSONAL].to(row), float(private[ALPHA]))
        space.renew_spectral_norms(mixture)
        return space.unpack(mixture)
