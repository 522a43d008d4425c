"""Laplace noise of a given variance, Lap(0, sqrt(variance / 2)), on every entry of an upload."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from fedpriv.defenses.noise import add_noise
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Payload, TransformContext


@transform
class Laplace:
    """Add Lap(0, b), b = sqrt(variance / 2), to every entry of the model tensors (Zhu et al. 2019; MpFedcon, table 4)."""

    stage: ClassVar[Stage] = Stage.NOISE
    variance: float = Field(1e-3, ge=0, description="variance of the noise per entry, 2 b^2; 0 adds none")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        def draw(shape: torch.Size) -> torch.Tensor:
            # The difference of two Exp(1) is Lap(0, 1), with variance 2; unlike inverse transform sampling, it is never infinite.
            first, second = (context.noise.exponential(shape) for _ in range(2))
            return (first - second) / 2**0.5

        return add_noise(payload, context, self.variance, draw, str(self))

    @property
    def noise_variance(self) -> float:
        return self.variance

    def __str__(self) -> str:
        return f"laplace({self.variance:g})"
