"""What a client adds to the sum of a round, as one row of numbers, and the sum back as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.deploy.secure.fixed_point import Array
from fedpriv.errors import UsageError
from fedpriv.server.merging import check_linear
from fedpriv.wire.message import Refused


@dataclass(frozen=True)
class Layout:
    """Both sides know it before the upload: from the terms of the run, and from what every client is sent.

    Attributes:
        received: what every client is sent in the round, by name.
        shapes: of the tensors that are added up, by name, in their order in the row. The sum of the weights follows them.

    Raises:
        UsageError: the run's uploads cannot be merged from a sum.
    """

    agreement: Agreement
    received: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        check_linear(self.agreement.method)
        expected = self.agreement.expected(0, 0, self.received)
        if expected.kind != "weights":
            raise UsageError(f"uploads through {expected.transforms[-1]} are compressed one by one and have no sum; leave it out")
        forms = expected.tensors
        nothing = {
            name: torch.zeros([0 if isinstance(size, str) else size for size in form.shape], dtype=form.dtype or torch.float32)
            for name, form in forms.items()
        }
        added = self.agreement.method.addend(nothing, self.received, 0.0)
        object.__setattr__(self, "shapes", {name: tuple(added[name].shape) for name in sorted(added)})

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return sum(prod(shape) for shape in self.shapes.values()) + 1

    def row(self, upload: Mapping[str, Tensor], examples: int) -> Array:
        """What a client adds ``(size,)``, from the tensors of its upload.

        Raises:
            Refused: it cannot be added to what the others send, such as where a client has no data for a part of the net.
        """
        weight = self._weight(examples)
        added = self.agreement.method.addend(upload, self.received, weight)
        if {name: tuple(tensor.shape) for name, tensor in added.items()} != self.shapes:
            raise Refused("the upload has other tensors than those of the sum; every client must send the same")
        return np.concatenate([*(added[name].cpu().numpy().reshape(-1) for name in self.shapes), [weight]])

    def sums(self, total: Array) -> tuple[dict[str, Tensor], float]:
        """The sums of the tensors, by name, and that of the weights."""
        found, start = dict[str, Tensor](), 0
        for name, shape in self.shapes.items():
            found[name] = torch.from_numpy(total[start : start + prod(shape)].reshape(shape))
            start += prod(shape)
        return found, float(total[-1])

    def _weight(self, examples: int) -> float:
        """At most one, so that what is added is no larger than what is sent."""
        weight = self.agreement.method.aggregation.weight
        return weight(examples) / weight(self.agreement.declared.most_samples)
