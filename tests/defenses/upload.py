"""An upload whose change is known, and what comes out of transforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedpriv.defenses import build_transforms
from fedpriv.noise_source import SeededNoise
from fedpriv.wire import Payload, Sealed, TransformContext, transform_and_seal
from fedpriv.wire.coding import decoded

LAYERS = ("encoder.fc1.weight", "encoder.fc1.bias", "encoder.fc2.weight", "head.weight", "head.bias")
LINEAR = ("encoder.fc1", "encoder.fc2", "head")


def received(side: int = 100) -> dict[str, Tensor]:
    """What the client was sent: about ``2 side^2`` entries."""
    drawn = torch.Generator().manual_seed(1)
    shapes = [(side, side), (side,), (side, side), (3, side), (3,)]
    return {name: torch.randn(shape, generator=drawn) for name, shape in zip(LAYERS, shapes, strict=True)}


def upload(base: Mapping[str, Tensor], scale: float = 0.01) -> Payload:
    """Every tensor changed by ``N(0, scale^2)``, and a statistic."""
    drawn = torch.Generator().manual_seed(2)
    tensors = {name: value + scale * torch.randn(value.shape, generator=drawn) for name, value in base.items()}
    return Payload({**tensors, "statistic.centers": torch.ones(3, 2)}, round=1, client=4, num_examples=7)


class Sender:
    """A client with transforms; ``reports`` is what they reported last."""

    def __init__(self, base: Mapping[str, Tensor], *transforms: dict[str, Any], seed: int = 5) -> None:
        self.base, self.seed = base, seed
        self.transforms = build_transforms(transforms)
        self.reports: dict[str, float] = {}

    def context(self, index: int) -> TransformContext:
        draws = SeededNoise(torch.Generator().manual_seed(self.seed + index))
        return TransformContext(self.base, LAYERS, draws, LINEAR, self.reports.__setitem__)

    def send(self, payload: Payload) -> Sealed:
        return transform_and_seal(payload, self.transforms, self.context)

    def arrives(self, payload: Payload) -> dict[str, Tensor]:
        """What the server computes with."""
        return decoded(self.send(payload), self.base).tensors()


def change(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> Tensor:
    """All changes in one flat float64 tensor."""
    return torch.cat([(tensors[name].double() - base[name].double()).reshape(-1) for name in base])
