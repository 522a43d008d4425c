"""Checks and decodes a download, before a client trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.aggregation import Aggregation
from fedpriv.agreement import Agreement
from fedpriv.client.suspicion import check_for_marks
from fedpriv.errors import FedprivError
from fedpriv.wire import Sealed, tensor_of
from fedpriv.wire.coding import Upload, is_model
from fedpriv.wire.message import Refused
from fedpriv.wire.sealing import CODES


@dataclass(frozen=True)
class Received:
    """A decoded download, which the clients of one process share.

    Attributes:
        tensors: what was sent, by name.
        initial: ``(p,)`` the model before the first round.
        start: ``(p,)`` the model that a local update starts from, apart from what the client keeps.
        message: the download itself; ``None``: the method does not communicate.
    """

    round: int
    tensors: Mapping[str, Tensor]
    initial: Tensor
    start: Tensor
    message: Sealed | None = None


def receive(agreement: Agreement, round: int, download: Sealed | None, initial: Tensor, generator: torch.Generator) -> Received:
    """Check and decode what the server sent. Tensors that were not sent have their initial values.

    Args:
        download: ``None``: the method does not communicate.
        initial: ``(p,)`` the model before the first round, on the device.
        generator: draws the rows that the check for marks of an attack looks at.

    Raises:
        FedprivError: the message is not what the server of this run may send in this round.
        SuspiciousDownload: it has marks of an attack, and ``wire.check_downloads`` is set.
    """
    if download is not None:
        try:
            check_download(agreement, round, download)
        except Refused as reason:
            raise FedprivError(f"what the server sent for round {round} is refused: {reason}") from None
    tensors = {name: tensor.to(initial.device) for name, tensor in download.tensors().items()} if download else {}
    if agreement.config.wire.check_downloads:
        check_for_marks(agreement, round, tensors, generator)
    return Received(round, tensors, initial, agreement.space.pack(tensors, initial.clone()), download)


def check_download(agreement: Agreement, round: int, download: Sealed) -> None:
    """Check a download (round 0: the broadcast) as far as is possible without the server's state.

    Raises:
        Refused: it is of another round or kind, has other tensors or shapes than the server sends, or a number that is not
            finite, or a negative variance.
    """
    space, dtype = agreement.space, agreement.initial.dtype
    known = set(space.names if round == 0 else agreement.method.shared_names)
    if (download.round, download.client, download.kind, download.transforms) != (round, None, "weights", ()):
        raise Refused(f"it is of kind {download.kind} for round {download.round}")
    for name, (code, shape) in download.schema.items():
        about = tensor_of(name)
        if is_model(name) and name not in known:
            raise Refused(f"{name} is nothing that the server sends")
        if is_model(name) and CODES[code] != dtype:
            raise Refused(f"{name} is of {CODES[code]}, not {dtype}")
        if about in space and shape != tuple(space[about].shape):
            raise Refused(f"{name} has shape {list(shape)}, not {list(space[about].shape)}")
    method = agreement.method
    sends_all = round == 0 or not (
        method.partial_downloads or type(method.aggregation).download_names is not Aggregation.download_names
    )
    if sends_all and (missing := sorted(known - download.names)):
        raise Refused(f"{missing[0]} is missing")
    if spoiled := download.not_finite():
        raise Refused(f"{spoiled} is not finite")
    Upload(download).check_variances()
