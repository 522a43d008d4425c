"""Gaussian noise of a given variance, N(0, variance), on every entry of an upload."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedpriv.defenses.noise import add_noise
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Payload, TransformContext


@transform
class Gaussian:
    """Add N(0, variance) to every entry of the model tensors (Zhu et al. 2019; MpFedcon, table 4); without an epsilon."""

    stage: ClassVar[Stage] = Stage.NOISE
    variance: float = Field(1e-3, ge=0, description="variance of the noise per entry; 0 adds none")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        return add_noise(payload, context, self.variance, context.noise.normal, str(self))

    @property
    def noise_variance(self) -> float:
        return self.variance

    def __str__(self) -> str:
        return f"gaussian({self.variance:g})"
