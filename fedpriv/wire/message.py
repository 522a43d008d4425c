"""A message before it is sealed: named tensors and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

Kind = Literal[
    "weights", "delta", "gradient", "report",
    "columns", "levels", "inquiry", "statistics", "encoding",
    "keys", "letters", "masked", "members", "confirmed", "shares",
]  # fmt: skip
"""The content of a message, line by line: a model in one of three forms or a client's report, a step of the statistics of all
samples, a step of a secure sum."""
Direction = Literal["down", "up", "report"]
"""A download, an upload, or a client's report, which is sent with the upload."""

STATISTIC = "statistic."
"""Prefix of tensors that are not part of the model: class centres, masks, counts, control variates."""


def statistic(what: str, about: str | None = None) -> str:
    """The wire name of a statistic; of one about a tensor of the net: ``statistic.variate/encoder.fc.weight``."""
    return f"{STATISTIC}{what}" + (f"/{about}" if about else "")


def tensor_of(name: str) -> str:
    """The net's tensor that a wire name denotes, or that a statistic is about; a mask of the tensor hides both."""
    return name.rpartition("/")[2] if name.startswith(STATISTIC) else name


class Refused(ValueError):
    """A message is refused; the reason in one line."""


@dataclass(frozen=True)
class Payload:
    """A draft of a message.

    Attributes:
        tensors: by name; model tensors have their parameter's name, others the prefix ``statistic.``.
        round: the round it belongs to (0: the broadcast of the initial model).
        client: its sender or receiver; ``None``: it is the same for every client.
        kind: what the tensors are; a ``report`` (:class:`fedpriv.wire.report.Report`) and the steps of a secure sum
            (:mod:`fedpriv.secure.messages`) hold no model.
        num_examples: the client's number of training samples, if the method reveals it.
        transforms: those that were applied to the tensors, in order.
    """

    tensors: Mapping[str, Tensor]
    round: int
    client: int | None = None
    kind: Kind = "weights"
    num_examples: int | None = None
    transforms: tuple[str, ...] = ()

    def with_tensors(self, tensors: Mapping[str, Tensor], transform: str) -> Payload:
        """A copy with other tensors, which notes the transform."""
        return replace(self, tensors=tensors, transforms=(*self.transforms, transform))
