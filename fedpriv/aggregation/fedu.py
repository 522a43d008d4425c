"""The divergence-aware predictor update of FedU (Zhuang et al., ICCV 2021), as Rehman et al. (ICCV 2023) compare with it.

A client whose encoder changed by more than a threshold in its last local update keeps its own predictor instead of the received
one. SimCLR and Barlow Twins have no predictor; here it is the projector by default.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import register
from fedpriv.aggregation.dawa import BASE_TEXT, DIVERGENCE_TEXT, Base, DawaParams, LDawa
from fedpriv.errors import UsageError
from fedpriv.interfaces import ROLE_OPTIONS, Context, LocalUpdate, params
from fedpriv.parameters import ParameterSpace

_MOVED, _LOCAL = "fedu.moved", "fedu.own"


@params
class LDawaFedUParams(DawaParams):
    """Options of L-DAWA with FedU's update."""

    base: Base = Field("samples", description=BASE_TEXT)
    fedu_part: Literal["projector", "predictor", "head"] = Field(
        "projector",
        description="the role that a client may keep (FedU: the predictor, which SimCLR and Barlow Twins do not have)",
    )
    fedu_threshold: float = Field(
        0.4, gt=0, description="a client takes the received one if its encoder moved by less than this (FedU; EasyFL)"
    )


def movement(space: ParameterSpace, before: Tensor, after: Tensor) -> float:
    """How far the encoder moved between two models ``(p,)``: the mean over its convolutions of the L2 norm of their change.

    For an encoder without convolutions, the mean is over its weight matrices.
    """
    weights = [entry for entry in space.entries if entry.role == "encoder" and entry.kind == "weight"]
    weights = [entry for entry in weights if len(entry.shape) > 2] or weights
    changes = [after[entry.start : entry.stop] - before[entry.start : entry.stop] for entry in weights]
    return sum(float(torch.linalg.vector_norm(change, dtype=torch.float64)) for change in changes) / len(changes)


@register("l-dawa-fedu")
class LDawaFedU(LDawa):
    """L-DAWA times FedAvg's weights; a client whose encoder moved far keeps its own projector."""

    Params = LDawaFedUParams
    keeps = "its own projector, and how far its encoder moved"

    def __init__(self, params: Any, context: Context) -> None:
        super().__init__(params, context)
        names = context.space.select([params.fedu_part])
        if not names:
            option = ROLE_OPTIONS.get(params.fedu_part, "")
            raise UsageError(f"aggregation {self.name}: the net has no {params.fedu_part} to keep; --set {option}")
        self._part = context.space.restricted(names)

    def set_start(self, update: LocalUpdate) -> None:
        if update.first_time or float(update.private[_MOVED]) < self.params.fedu_threshold:
            return
        for row in (update.row, update.start):
            self.context.space.pack(self._part.unpack(update.private[_LOCAL]), row)

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        local = self._part.pack(update.state(self._part.names), update.row.new_empty(self._part.size))
        moved = torch.tensor(movement(self.context.space, update.start, update.row), dtype=torch.float64)
        return {**super().keep(update), _LOCAL: local, _MOVED: moved}


@params
class FedUParams(LDawaFedUParams):
    """Options of FedU."""

    divergence: Literal["none", "model", "layer"] = Field("none", description=DIVERGENCE_TEXT)


@register("fedu")
class FedU(LDawaFedU):
    """FedAvg; a client whose encoder moved far keeps its own projector."""

    paper = "Zhuang et al., ICCV 2021; reading of Rehman et al., ICCV 2023"
    Params = FedUParams
