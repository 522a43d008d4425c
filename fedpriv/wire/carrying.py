"""The wire between clients and server: transforms of uploads, taps, and byte counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.wire.message import Direction, Payload
from fedpriv.wire.sealing import Sealed, seal


class RandomStream(Protocol):
    """A stream of random numbers, as CPU tensors. In a deployment they are derived from a secret of the client."""

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """From [0, 1)."""

    def normal(self, shape: Sequence[int]) -> Tensor:
        """float32, from N(0, 1)."""

    def exponential(self, shape: Sequence[int]) -> Tensor:
        """float32, from Exp(1)."""


@dataclass(frozen=True)
class TransformContext:
    """The inputs of a transform besides the payload.

    Attributes:
        received: the tensors that the client was sent in this round.
        layers: the net's parameter names in forward order.
        noise: random numbers for this client, round and transform alone. Noise must be drawn from it, as others may predict
            torch's global generator.
        linear: the names of the net's fully connected layers in forward order.
        report: called with a name (``"snr_db/encoder.fc1"``) and a number, whose mean over the clients is in the round's record.
    """

    received: Mapping[str, Tensor]
    layers: Sequence[str]
    noise: RandomStream
    linear: Sequence[str] = ()
    report: Callable[[str, float], None] = lambda name, value: None


class Transform(Protocol):
    """A transform of an upload before it is sent; ``str(transform)`` is noted in the payload.

    Attackers know what it does to the change if the class declares it: ``rescales = True`` (the change is multiplied by a factor
    that the server does not know), and ``noise_variance`` (of the noise on every entry). A transform that does neither declares
    ``rescales = False``. If a transform declares nothing, an audit counts no failed attack as evidence.

    A transform that changes names, dtypes or shapes of tensors defines ``expects(expected, linear)``. It returns the
    :class:`~fedpriv.wire.expected.Expected` message after the transform, from the one before it and the names of the net's fully
    connected layers in forward order.
    """

    def __call__(self, payload: Payload, context: TransformContext) -> Payload: ...


Tap = Callable[[Direction, Sealed], None]
"""Called with every message that crosses, in both directions."""


class ByteMeter:
    """Counts the bytes that cross in both directions."""

    def __init__(self) -> None:
        self.down = 0
        self.up = 0

    def __call__(self, direction: Direction, payload: Sealed) -> None:
        if direction == "down":
            self.down += payload.nbytes
        else:
            self.up += payload.nbytes

    def read(self) -> tuple[int, int]:
        """Bytes (up, down) since the last reading."""
        up, down = self.up, self.down
        self.up = self.down = 0
        return up, down


def transform_and_seal(payload: Payload, transforms: Sequence[Transform], contexts: Callable[[int], TransformContext]) -> Sealed:
    """Apply the transforms to a payload, in order, and seal it.

    Args:
        contexts: returns the context of the i-th transform.
    """
    for index, transform in enumerate(transforms):
        payload = transform(payload, contexts(index))
    return seal(payload)
