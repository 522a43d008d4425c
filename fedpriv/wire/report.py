"""A client's report on its local update: a message beside the upload, which is counted and audited like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.wire.message import Payload, Refused
from fedpriv.wire.sealing import Sealed, seal

_LOSS, _SCORE, _SPENT, _NUMBER = "loss", "score/", "spent", "number/"
_KEEPS, _DIVERGED, _UNTRAINED = _FLAGS = "keeps", "diverged", "untrained"

LARGEST = 2.0**128
"""A bound above all finite float32 numbers; float64 means of numbers below it are finite."""

Charge = tuple[float, int]
"""Sampling rate and steps of a phase of DP-SGD."""


def can_say(value: float) -> bool:
    """Whether a report may hold a number: it is finite, and within the range of float32."""
    return abs(value) < LARGEST


@dataclass(frozen=True)
class Report:
    """A client's report on its local update, or on a test.

    Attributes:
        num_examples: training samples (of a test: test samples).
        loss: mean training loss of the last local epoch, in nats; ``None``: the client took no step.
        scores: of a test, by name.
        keeps: whether it keeps a private state of this local update.
        diverged: its loss or its weights are not finite, so there is no upload.
        untrained: it took no step, as all its batches are too small, so there is no upload.
        spent: the phases of DP-SGD, under sample-level DP.
        numbers: what the method and the transforms report, by name.
    """

    round: int
    client: int
    num_examples: int
    loss: float | None = None
    keeps: bool = False
    diverged: bool = False
    untrained: bool = False
    spent: Sequence[Charge] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)

    def seal(self) -> Sealed:
        """The report as a message; its numbers are float64 scalars."""
        tensors: dict[str, Tensor] = {} if self.loss is None else {_LOSS: _scalar(self.loss)}
        for name, holds in zip(_FLAGS, (self.keeps, self.diverged, self.untrained), strict=True):
            if holds:
                tensors[name] = torch.tensor(True)
        if self.spent:
            tensors[_SPENT] = torch.tensor(self.spent, dtype=torch.float64)
        for prefix, values in ((_NUMBER, self.numbers), (_SCORE, self.scores)):
            tensors |= {prefix + name: _scalar(value) for name, value in values.items()}
        return seal(Payload(tensors, self.round, self.client, "report", self.num_examples))

    @classmethod
    def of(cls, sealed: Sealed) -> Report:
        """The report of a message.

        Raises:
            Refused: the message is not one that :meth:`seal` makes.
        """
        if sealed.kind != "report" or sealed.client is None or sealed.num_examples is None or sealed.transforms:
            raise Refused("it is not a report")
        for name, (code, shape) in sealed.schema.items():
            known = name == _LOSS or name.startswith((_NUMBER, _SCORE))
            right = ("F64", ()) if known else ("BOOL", ()) if name in _FLAGS else None
            if name == _SPENT and code == "F64" and shape[1:] == (2,):
                continue
            if right != (code, shape):
                raise Refused(f"its report has {name} of {code} {list(shape)}")
        if spoiled := sealed.not_finite():
            raise Refused(f"{spoiled} of its report is not finite")
        tensors = sealed.tensors()
        charges = tensors.pop(_SPENT, torch.empty(0, 2)).tolist()
        if wrong := [rate for rate, steps in charges if not (0 < rate <= 1 and 0 <= steps < 2**31 and steps.is_integer())]:
            raise Refused(f"it reports steps of DP-SGD at rate {wrong[0]:g} that cannot be")
        values = {name: tensor.item() for name, tensor in tensors.items()}
        if huge := next((name for name, value in values.items() if not can_say(value)), None):
            raise Refused(f"{huge} of its report is {values[huge]:g}, beyond the float32 numbers")
        return cls(
            sealed.round,
            sealed.client,
            sealed.num_examples,
            values.get(_LOSS),
            bool(values.get(_KEEPS, False)),
            bool(values.get(_DIVERGED, False)),
            bool(values.get(_UNTRAINED, False)),
            [(rate, int(steps)) for rate, steps in charges],
            _with_prefix(_NUMBER, values),
            _with_prefix(_SCORE, values),
        )


@dataclass(frozen=True)
class Answer:
    """A client's answer to an instruction of the server.

    Attributes:
        upload: ``None``: there is none, as the client diverged or took no step, or the method does not communicate.
        report: its :class:`Report`, sealed.
    """

    client: int
    upload: Sealed | None
    report: Sealed


def _with_prefix(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
