"""The uploads that arrive at the server in a round: invalid ones are rejected here, before a method sees them.

A method and its halves can then rely on what they are given, and an upload that was left out leaves no trace in what they keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedpriv.methods.base import Method
from fedpriv.simulation.executors.sequential import TurnResult
from fedpriv.wire import tensor_of
from fedpriv.wire.coding import Upload, decoded, is_model


@dataclass(frozen=True)
class Arrivals:
    """A round's turns as the server takes them.

    Attributes:
        results: the turns whose upload was not left out, or that sent none, in the order given.
        uploads: their uploads.
        rejected: client -> why its upload was left out.
    """

    results: list[TurnResult]
    uploads: list[Upload]
    rejected: dict[int, str]


def sift(results: Iterable[TurnResult], sent: Mapping[str, Tensor], method: Method) -> Arrivals:
    """Part the uploads that can be merged from those that cannot.

    Args:
        sent: what the participants had been sent, by name.
    """
    arrivals = Arrivals([], [], {})
    for result in results:
        upload = None if result.upload is None else decoded(result.upload, sent)
        if upload is not None and (reason := objection(upload, method)):
            arrivals.rejected[result.client] = reason
            continue
        arrivals.results.append(result)
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
