"""Laplace noise of a given variance, Lap(0, sqrt(variance / 2)), on every entry of an upload."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.defenses.noise import Noise
from fedpriv.defenses.stage import transform
from fedpriv.wire import RandomStream


@transform
class Laplace(Noise):
    """Add Lap(0, b), b = sqrt(variance / 2), to every entry of the model tensors (Zhu et al. 2019; MpFedcon, table 4)."""

    def draw(self, noise: RandomStream, shape: torch.Size) -> Tensor:
        # The difference of two Exp(1) is Lap(0, 1), with variance 2; unlike inverse transform sampling, it is never infinite.
        first, second = (noise.exponential(shape) for _ in range(2))
        return (first - second) / 2**0.5

    def __str__(self) -> str:
        return f"laplace({self.variance:g})"
