"""What a loss may look at in one SGD step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedpriv.models.net import Outputs


@dataclass(frozen=True)
class Step:
    """One batch under the current parameters.

    Attributes:
        labels: ``(B,)`` int64.
        outputs: the trained net's outputs on the batch, with gradient.
        parameters: the trained net's parameters by name, with gradient.
        received: what the server sent this round, by name; constant.
        trains: the roles that this phase trains.
        teacher: the outputs, on the same (equally augmented) batch and without gradient, of a model frozen by name.
    """

    labels: Tensor
    outputs: Outputs
    parameters: Mapping[str, Tensor]
    received: Mapping[str, Tensor]
    trains: frozenset[str]
    teacher: Callable[[str], Outputs]


Loss = Callable[[Step], Tensor]
