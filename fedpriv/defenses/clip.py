"""Norm clipping (McMahan et al., ICLR 2018): change * min(1, norm / ||change||_2)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedpriv.defenses.change import changes, norm
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Payload, TransformContext

CLIPPED = "clipped"
"""Metric: 1 if the change was clipped, so that the round's record has the share of such clients."""


@transform
class Clip:
    """Scale the change by min(1, norm / ||change||_2), over all model tensors together (flat clipping)."""

    stage: ClassVar[Stage] = Stage.CLIP
    rescales: ClassVar[bool] = True
    norm: float = Field(1.0, gt=0, description="bound on the L2 norm of the change over all model tensors")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        change = changes(payload, context.received)
        length = norm(change.values())
        context.report(CLIPPED, float(length > self.norm))
        if length <= self.norm:  # the upload does not change, bit for bit
            return payload.with_tensors(payload.tensors, str(self))
        factor = self.norm / length
        references = context.received if payload.kind == "weights" else {}
        clipped = {
            name: factor * part + references[name] if name in references else factor * part for name, part in change.items()
        }
        return payload.with_tensors({**payload.tensors, **clipped}, str(self))

    def __str__(self) -> str:
        return f"clip({self.norm:g})"
