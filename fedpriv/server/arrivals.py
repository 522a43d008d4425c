"""The answers that arrive at the server in a round: invalid ones are rejected here, before a method sees them.

A method and its halves can then rely on what they are given, and an upload that was left out leaves no trace in what they keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedpriv.methods.base import Method
from fedpriv.wire import tensor_of
from fedpriv.wire.coding import Upload, decoded, is_model
from fedpriv.wire.report import Answer, Report


@dataclass(frozen=True)
class Arrivals:
    """A round's answers as the server takes them, in the order of the clients it asked.

    Attributes:
        reports: of the turns whose upload was not left out, or that sent none.
        uploads: what is merged.
        diverged: clients without an upload because their training diverged.
        rejected: client -> why its upload was left out.
    """

    reports: list[Report] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)


def sift(answers: Iterable[tuple[Answer, Report]], sent: Mapping[str, Tensor], method: Method) -> Arrivals:
    """Part the uploads that can be merged from those that cannot.

    Args:
        sent: what the participants had been sent, by name.
    """
    arrivals = Arrivals()
    for answer, report in answers:
        if report.diverged:
            arrivals.diverged.append(report.client)
            continue
        upload = None if answer.upload is None else decoded(answer.upload, sent)
        if upload is not None and (reason := objection(upload, method)):
            arrivals.rejected[report.client] = reason
            continue
        arrivals.reports.append(report)
        if upload is not None:
            arrivals.uploads.append(upload)
    return arrivals


def objection(upload: Upload, method: Method) -> str | None:
    """Why an upload cannot be merged, in a few words; ``None``: it can.

    Every number is finite, what is of a tensor of the net has its shape, and the method has nothing against the statistics.
    """
    space = method.context.space
    shapes = upload.shapes
    for name, shape in shapes.items():
        about = tensor_of(name)
        if about in space and shape != space[about].shape:
            return f"{name} has shape {list(shape)}, not {list(space[about].shape)}"
    if spoiled := upload.not_finite():
        return f"{spoiled} is not finite"
    return method.objection(upload.tensors({name for name in shapes if not is_model(name)}))
