"""FedRep (Collins et al. 2021): the personal head first, on the frozen shared encoder; then the encoder under the frozen head."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Phase, params, phase
from fedpriv.methods.fedper import FedPer, FedPerParams
from fedpriv.models.net import AFTER_ENCODER


@params
class FedRepParams(FedPerParams):
    """Options of FedRep; ``train.local_epochs``, or ``local_steps``, is the length of the encoder phase."""

    head_epochs: int = Field(10, ge=0, description="E_h, epochs of the head phase (MpFedcon sec. 5.1; FedRep)")


@register("fedrep")
class FedRep(FedPer):
    """Shared encoder, personal projector and head; head phase, then encoder phase."""

    paper = "Collins et al., ICML 2021"
    Params = FedRepParams

    def phases(self, round: int) -> Sequence[Phase]:
        head = phase(*AFTER_ENCODER, epochs=self.params.head_epochs)
        return [head, phase("encoder", epochs=self.train.local_epochs, steps=self.train.local_steps)]
