"""Compressed uploads: the names of compressed tensors on the wire, and their decoding.

A compressed payload has the kind ``delta``: its model tensors are changes, the client's weights minus those that it was sent. The
form is a suffix of the name, so that a message is self-contained:

* ``encoder.fc.weight~indices`` (int32) and ``encoder.fc.weight~values``: the entries of a sparse change, flat;
* ``encoder.fc.weight~int8`` (or ``~int4``, packed) and ``encoder.fc.weight~scale``: a change is ``codes * scale``.

The second may follow the first: ``encoder.fc.weight~values~int8``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.wire import STATISTIC, Sealed

INDICES, VALUES, SCALE = "~indices", "~values", "~scale"
_CODES = re.compile(r"(.*)~int([2-8])")


def base_name(name: str) -> str:
    """The tensor to which a name on the wire belongs."""
    return name.split("~")[0]


def is_model(name: str) -> bool:
    """Whether the tensor is part of the net, not a statistic."""
    return not name.startswith(STATISTIC)


def codes_name(name: str, bits: int) -> str:
    """The name of the codes of a tensor."""
    return f"{name}~int{bits}"


def coded(name: str) -> tuple[str, int] | None:
    """The inverse of :func:`codes_name`: tensor and bits; ``None`` for other names."""
    found = _CODES.fullmatch(name)
    return found and (found[1], int(found[2]))


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes in ``[-L, L]``, ``L = 2^(bits-1) - 1``, for the wire: int8 of the same shape, or packed, ``bits`` bits a code."""
    if bits == 8:
        return codes.to(torch.int8)
    shifted = (codes.reshape(-1).cpu().to(torch.int16) + 2 ** (bits - 1) - 1).to(torch.uint8).numpy()
    planes = np.unpackbits(shifted[:, None], axis=1, count=8)[:, 8 - bits :]
    return torch.from_numpy(np.packbits(planes.reshape(-1)))


def unpack_codes(packed: Tensor, bits: int, shape: torch.Size) -> Tensor:
    """The codes as float32 of ``shape``."""
    if bits == 8:
        return packed.float().view(shape)
    planes = np.unpackbits(packed.cpu().numpy(), count=shape.numel() * bits).reshape(-1, bits)
    padded = np.pad(planes, ((0, 0), (8 - bits, 0)))
    return torch.from_numpy(np.packbits(padded, axis=1)[:, 0]).float().sub_(2 ** (bits - 1) - 1).view(shape)


@dataclass(frozen=True)
class Upload:
    """A decoded upload.

    Attributes:
        sealed: the message as it was sent.
        weights: all tensors of the message by name, with compressed changes decoded to weights; ``None``: nothing was compressed.
    """

    sealed: Sealed
    weights: Mapping[str, Tensor] | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors, by name."""
        if self.weights is None:
            return {name: shape for name, (_, shape) in self.sealed.schema.items()}
        return {name: tuple(tensor.shape) for name, tensor in self.weights.items()}

    def tensors(self, names: Container[str] | None = None) -> dict[str, Tensor]:
        """Copies of the tensors, or of those among ``names``."""
        if self.weights is None:
            return self.sealed.tensors(names)
        return {name: tensor.clone() for name, tensor in self.weights.items() if names is None or name in names}

    def copy_into(self, row: Tensor, spans: Mapping[str, slice]) -> None:
        """Copy the tensors that have a span into ``row`` ``(p,)``, in main memory; directly from the bytes if not compressed."""
        if self.weights is None:
            self.sealed.copy_into(row, spans)
            return
        for name, tensor in self.weights.items():
            if (span := spans.get(name)) is not None:
                row[span] = tensor.reshape(-1).to(row)

    def not_finite(self) -> str | None:
        """The name of the first tensor with an infinity or a NaN; ``None`` if there is none."""
        if self.weights is None:
            return self.sealed.not_finite()
        return next((name for name, tensor in sorted(self.weights.items()) if not bool(tensor.isfinite().all())), None)


def decoded(upload: Sealed, received: Mapping[str, Tensor]) -> Upload:
    """Decode compressed changes of an upload to weights.

    Args:
        received: the tensors that the sender had been sent, by name: the reference of the changes, and their shapes.
    """
    if upload.kind != "delta":
        return Upload(upload)
    tensors = upload.tensors()
    for name in list(tensors):
        if found := coded(name):
            inner, bits = found
            sparse = inner.endswith(VALUES)
            shape = tensors[inner.removesuffix(VALUES) + INDICES].shape if sparse else received[inner].shape
            tensors[inner] = unpack_codes(tensors.pop(name), bits, shape) * tensors.pop(inner + SCALE)
    for name in [name for name in tensors if name.endswith(INDICES)]:
        whole = name.removesuffix(INDICES)
        change = torch.zeros(received[whole].numel())
        change[tensors.pop(name).long()] = tensors.pop(whole + VALUES).float()
        tensors[whole] = change.view(received[whole].shape)
    for name, tensor in tensors.items():
        if is_model(name) and name in received:
            tensors[name] = received[name].cpu() + tensor.float()
    return Upload(upload, tensors)
