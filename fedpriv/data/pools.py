"""Pools: all samples of a split as stored on the device, from which the net's inputs are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.samples import Inputs, Pairs, each, size, take


class Pool(Protocol):
    """Samples on a device."""

    def __len__(self) -> int: ...

    def pick(self, index: Tensor | slice) -> Inputs:
        """The net's inputs for the samples at some positions ``(n,)``."""


class Images:
    """Images ``(N, C, H, W)`` uint8, normalised when they are picked.

    Args:
        mean, std: per channel on the [0, 1] scale.
    """

    def __init__(self, images: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self._images = images.to(device)
        shape = (1, -1, 1, 1)
        self._scale = (255 * torch.tensor(std)).reciprocal().view(shape).to(device)
        self._shift = (-torch.tensor(mean) / torch.tensor(std)).view(shape).to(device)

    def __len__(self) -> int:
        return len(self._images)

    def pick(self, index: Tensor | slice) -> Tensor:
        images = self._images[index] if isinstance(index, slice) else self._images.index_select(0, index)
        return torch.addcmul(self._shift, images.float(), self._scale)


class Ready:
    """Inputs that are stored as the net takes them: token ids ``(N, L)``, kept in 32 bits, or features."""

    def __init__(self, inputs: Inputs, device: torch.device) -> None:
        self._inputs = each(inputs, lambda part: part.to(device))

    def __len__(self) -> int:
        return size(self._inputs)

    def pick(self, index: Tensor | slice) -> Inputs:
        if isinstance(index, slice):
            return each(self._inputs, lambda part: _wide(part[index]))
        return each(take(self._inputs, index), _wide)


class Paired:
    """Images and texts of the same samples."""

    def __init__(self, images: Pool, texts: Pool) -> None:
        self._images, self._texts = images, texts

    def __len__(self) -> int:
        return len(self._images)

    def pick(self, index: Tensor | slice) -> Pairs:
        images, texts = self._images.pick(index), self._texts.pick(index)
        assert isinstance(images, Tensor) and isinstance(texts, Tensor)
        return Pairs(images, texts)


def _wide(part: Tensor) -> Tensor:
    return part.long() if part.dtype == torch.int32 else part
