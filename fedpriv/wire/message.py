"""A message before it is sealed: named tensors, facts, and what wire names mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

Kind = Literal["weights", "delta", "gradient", "report", "keys", "letters", "masked", "members", "confirmed", "shares"]
"""What is in a message: a model in one of three forms, a client's report, or (the last six) a step of a secure sum."""
Direction = Literal["down", "up", "report"]
"""A download, an upload, and a client's report, which goes up beside the upload."""

STATISTIC = "statistic."
"""Prefix of tensors that are not the model: class centres, masks, counts, control variates."""


def statistic(what: str, about: str | None = None) -> str:
    """The wire name of a statistic; if it says something of a tensor of the net: ``statistic.variate/encoder.fc.weight``."""
    return f"{STATISTIC}{what}" + (f"/{about}" if about else "")


def tensor_of(name: str) -> str:
    """The net's tensor that a wire name is, or says something of; a mask that hides the tensor hides both."""
    return name.rpartition("/")[2] if name.startswith(STATISTIC) else name


class Refused(ValueError):
    """A message that cannot be what it should be; the reason in one line."""


@dataclass(frozen=True)
class Payload:
    """A draft of a message.

    Attributes:
        tensors: by name; model tensors have their parameter's name, others the prefix ``statistic.``.
        round: the round it belongs to (0: the broadcast of the initial model).
        client: the client it comes from or goes to; ``None``: the same to every client.
        kind: what the model tensors are; there are none in a ``report`` (:class:`fedpriv.wire.report.Report`) and in the steps
            of a secure sum (:mod:`fedpriv.secure.messages`).
        num_examples: the client's number of training samples, if the method reveals it.
        transforms: what the tensors went through, in order.
    """

    tensors: Mapping[str, Tensor]
    round: int
    client: int | None = None
    kind: Kind = "weights"
    num_examples: int | None = None
    transforms: tuple[str, ...] = ()

    def with_tensors(self, tensors: Mapping[str, Tensor], transform: str) -> Payload:
        """A copy with other tensors, noting the transform that made them."""
        return replace(self, tensors=tensors, transforms=(*self.transforms, transform))
