"""The wire between clients and server: transforms of uploads, taps, and byte counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.wire.message import Direction, Payload
from fedpriv.wire.sealing import Sealed, seal


class Draws(Protocol):
    """Random numbers, one after another; tensors are on the processor. In a deployment they come from a secret of the client."""

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
        received: the tensors that the client was sent this round (the reference of a delta).
        layers: the net's parameter names in forward order.
        draws: of this client, round and transform alone. Noise is drawn from these, as others may guess what torch draws.
        linear: the names of the net's fully connected layers in forward order, so that "the last N" has a meaning.
        report: receives a name (``"snr_db/encoder.fc1"``) and a number; the round's record has its mean over the clients.
    """

    received: Mapping[str, Tensor]
    layers: Sequence[str]
    draws: Draws
    linear: Sequence[str] = ()
    report: Callable[[str, float], None] = lambda name, value: None


class Transform(Protocol):
    """A transform of an upload before it is sent; ``str(transform)`` is noted in the payload.

    Its effect on the change is public. Attackers know it if the class declares it: ``rescales = True`` (the change is multiplied
    by a factor that the server does not know) and ``noise_variance`` (of the noise on every entry). One that does neither, as
    what it does can be seen from the message, declares ``rescales = False``; of one that declares nothing, an audit counts no
    failed attack as evidence.

    A transform that changes names, dtypes or shapes of tensors defines ``expects(expected, linear)``: from the
    :class:`~fedpriv.wire.expected.Expected` message before it, and the names of the net's fully connected layers in forward
    order, the one after it.
    """

    def __call__(self, payload: Payload, context: TransformContext) -> Payload: ...


Tap = Callable[[Direction, Sealed], None]
"""Receives every sealed message that crosses, in both directions."""


class ByteMeter:
    """Counts the bytes of a round in both directions."""

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
        counted = (self.up, self.down)
        self.up = self.down = 0
        return counted


def transform_and_seal(payload: Payload, transforms: Sequence[Transform], contexts: Callable[[int], TransformContext]) -> Sealed:
    """Client -> wire: the payload through the transforms, in order, as bytes.

    Args:
        contexts: makes the context of the i-th transform.
    """
    for index, transform in enumerate(transforms):
        payload = transform(payload, contexts(index))
    return seal(payload)
