"""Gaussian noise of a given variance, N(0, variance), on every entry of an upload."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.defenses.noise import Noise
from fedpriv.defenses.stage import transform
from fedpriv.wire import RandomStream


@transform
class Gaussian(Noise):
    """Add N(0, variance) to every entry of the model tensors (Zhu et al. 2019; MpFedcon, table 4); without an epsilon."""

    def draw(self, noise: RandomStream, shape: torch.Size) -> Tensor:
        return noise.normal(shape)

    def __str__(self) -> str:
        return f"gaussian({self.variance:g})"
