"""What an audit reads: the base class of its sources, and the messages that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from fedpriv.attacks.core.altered import UNALTERED, Altered
from fedpriv.wire.coding import is_model


@dataclass(frozen=True)
class Message:
    """An upload and the download before it, as kept by the run.

    Attributes:
        received: the tensors that the client was sent in this round, by the net's names.
        uploaded: the tensors that it sent back, compressed changes decoded into weights.
        num_examples: its number of samples as the message states it.
        altered: the effect of the transforms on the change, by the net's names.
        parts: how many clients it is the mean of.
        first_update: whether it is known to be of a client that has had no local update before, as simulated ones have not.
    """

    round: int
    client: int
    received: Mapping[str, Tensor]
    uploaded: Mapping[str, Tensor]
    num_examples: int | None
    altered: Altered = UNALTERED
    parts: int = 1
    first_update: bool = False

    @property
    def of_model(self) -> list[str]:
        """Names of the tensors that it sent back of the model."""
        return [name for name in self.uploaded if is_model(name)]

    def simulated(self, uploaded: Mapping[str, Tensor]) -> Message:
        """The message of a simulated client in its place; itself where that is what it uploaded."""
        return self if uploaded is self.uploaded else replace(self, uploaded=uploaded, first_update=True)


@dataclass(frozen=True)
class Truth:
    """The training data behind a message: images ``(n, C, H, W)`` in [0, 1], labels ``(n,)``. Attacks never get it."""

    images: Tensor
    labels: Tensor
