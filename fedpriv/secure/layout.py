"""A client's upload as the row of numbers that it adds to a secure sum, and the sum as tensors again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.secure.fixed_point import CLIP, Array
from fedpriv.wire.message import Refused


@dataclass(frozen=True)
class Sums:
    """The sum of some clients' uploads.

    Attributes:
        tensors: the sums of their addends (:meth:`fedpriv.aggregation.base.Aggregation.addend`), by name, in float64.
        weight: the sum of their weights.
        loss: the mean training loss over the samples of those that took a step, without losses that are too large for a sum;
            ``None``: there is none.
    """

    tensors: Mapping[str, Tensor]
    weight: float
    loss: float | None


@dataclass(frozen=True)
class Layout:
    """The layout of the row. Both sides derive it, before the upload, from the agreement and from what every client is sent.

    Attributes:
        received: what every client is sent in the round, by name.
        shapes: of the summed tensors, by name, in their order in the row; the weight and the loss follow them.
    """

    agreement: Agreement
    received: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        forms = self.agreement.expected(0, 0, self.received).tensors
        empty = {
            name: torch.zeros([0 if isinstance(size, str) else size for size in form.shape], dtype=form.dtype or torch.float32)
            for name, form in forms.items()
        }
        added = self.agreement.method.addend(empty, self.received, 0.0)
        object.__setattr__(self, "shapes", {name: tuple(added[name].shape) for name in sorted(added)})

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return sum(prod(shape) for shape in self.shapes.values()) + 3

    def row(self, upload: Mapping[str, Tensor], examples: int, loss: float | None) -> Array:
        """The row ``(size,)`` that a client adds, from the tensors of its upload and its mean training loss.

        Raises:
            Refused: the upload has other tensors than the others', as of a client without data for a part of the net; or a number
                of it is too large, and would be clipped.
        """
        weight = self._weight(examples)
        added = self.agreement.method.addend(upload, self.received, weight)
        if {name: tuple(tensor.shape) for name, tensor in added.items()} != self.shapes:
            raise Refused("the upload has other tensors than those of the sum; every client must send the same")
        for name, tensor in added.items():
            if (largest := float(tensor.abs().max()) if tensor.numel() else 0.0) > CLIP:
                raise Refused(f"{name} adds {largest:g}, and numbers of a sum are at most {CLIP:g}")
        share = 0.0 if loss is None else examples / self.agreement.declared.most_samples
        losses = share * (loss or 0.0)
        if abs(losses) > CLIP:  # clipping it would make the mean wrong; the upload is added without it
            share = losses = 0.0
        tail = [weight, share, losses]
        return np.concatenate([*(added[name].cpu().numpy().reshape(-1) for name in self.shapes), tail])

    def sums(self, total: Array) -> Sums:
        """The sum of the rows ``(size,)`` as tensors, weight and loss."""
        tensors, start = dict[str, Tensor](), 0
        for name, shape in self.shapes.items():
            tensors[name] = torch.from_numpy(total[start : start + prod(shape)].reshape(shape))
            start += prod(shape)
        weight, share, losses = (float(number) for number in total[start:])
        return Sums(tensors, weight, losses / share if share > 0 else None)

    def _weight(self, examples: int) -> float:
        """The client's weight, at most 1, so that no addend is larger than the upload."""
        weight = self.agreement.method.aggregation.weight_in_sum
        return weight(examples) / weight(self.agreement.declared.most_samples)
