"""FedRep (Collins et al., ICML 2021, alg. 1): a shared encoder and personal heads, trained one after the other.

Each client first trains its head on the frozen encoder, then the encoder under the frozen head.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Phase, params, phase
from fedpriv.methods.fedper import FedPer, FedPerParams
from fedpriv.models.net import AFTER_ENCODER


@params
class FedRepParams(FedPerParams):
    """Options of FedRep; the encoder phase takes ``train.local_epochs`` or ``local_steps``."""

    head_epochs: int = Field(10, ge=0, description="epochs of the head phase (FedRep; MpFedcon sec. 5.1)")


@register("fedrep")
class FedRep(FedPer):
    """A shared encoder, and a personal projector and head; a head phase is followed by an encoder phase."""

    paper = "Collins et al., ICML 2021"
    Params = FedRepParams

    def phases(self, round: int) -> Sequence[Phase]:
        head = phase(*AFTER_ENCODER, epochs=self.params.head_epochs)
        return [head, phase("encoder", epochs=self.train.local_epochs, steps=self.train.local_steps)]
