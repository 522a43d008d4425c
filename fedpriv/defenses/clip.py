"""Norm clipping."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedpriv.defenses.change import changes, norm
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Payload, TransformContext

CLIPPED = "clipped"
"""The reported value: 1 where the change exceeded the bound (in the round's record: the share of such clients)."""


@transform
class Clip:
    """Scale the change by min(1, norm / ||change||_2), over all model tensors together (McMahan et al. 2018, flat clipping)."""

    stage: ClassVar[Stage] = Stage.CLIP
    rescales: ClassVar[bool] = True
    norm: float = Field(1.0, gt=0, description="bound on the L2 norm of the change over all model tensors")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        found = changes(payload, context.received)
        length = norm(found.values())
        context.report(CLIPPED, float(length > self.norm))
        if length <= self.norm:  # within the bound, the upload stays bit-identical
            return payload.with_tensors(payload.tensors, str(self))
        factor = self.norm / length
        references = context.received if payload.kind == "weights" else {}
        clipped = {
            name: factor * change + references[name] if name in references else factor * change for name, change in found.items()
        }
        return payload.with_tensors({**payload.tensors, **clipped}, str(self))

    def __str__(self) -> str:
        return f"clip({self.norm:g})"
