"""Decoding of compressed uploads.

A compressed payload has the kind ``delta``: its model tensors are changes, the client's weights minus those that it was sent. The
suffix of a tensor's name tells how it is coded:

* ``encoder.fc.weight~indices`` (int32) and ``encoder.fc.weight~values``: the entries of a sparse change, flat;
* ``encoder.fc.weight~int8`` (or ``~int4``, packed) and ``encoder.fc.weight~scale``: a change is ``codes * scale``.

The second may follow the first: ``encoder.fc.weight~values~int8``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.wire.message import STATISTIC, Refused
from fedpriv.wire.sealing import Sealed

INDICES, VALUES, SCALE = "~indices", "~values", "~scale"
RUNNING_VAR = "running_var"
"""The end of the names of BatchNorm's running variances, which a transform must not make negative."""


def base_name(name: str) -> str:
    """The name of the tensor that a name on the wire belongs to."""
    return name.split("~")[0]


def is_model(name: str) -> bool:
    """Whether the tensor is part of the net, not a statistic."""
    return not name.startswith(STATISTIC)


def codes_name(name: str, bits: int) -> str:
    """The name of the codes of a tensor."""
    return f"{name}~int{bits}"


_CODES = re.compile(r"(.*)~int([2-8])")


def coded(name: str) -> tuple[str, int] | None:
    """The inverse of :func:`codes_name`: tensor and bits; ``None`` for other names."""
    match = _CODES.fullmatch(name)
    return match and (match[1], int(match[2]))


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes in ``[-L, L]``, with ``L = 2^(bits-1) - 1``, as int8 of the same shape, or, of fewer bits, packed into bytes."""
    if bits == 8:
        return codes.to(torch.int8)
    shifted = (codes.reshape(-1).cpu().to(torch.int16) + 2 ** (bits - 1) - 1).to(torch.uint8).numpy()
    planes = np.unpackbits(shifted[:, None], axis=1, count=8)[:, 8 - bits :]
    return torch.from_numpy(np.packbits(planes.reshape(-1)))


def unpack_codes(packed: Tensor, bits: int, shape: torch.Size) -> Tensor:
    """The inverse of :func:`pack_codes`: float32 of ``shape``."""
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
        weights: all tensors by name, with compressed changes decoded to weights; ``None``: nothing was compressed.
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
        """Copy the tensors that have a span into ``row`` ``(p,)``, a CPU tensor; directly from the bytes if not compressed."""
        if self.weights is None:
            self.sealed.copy_into(row, spans)
            return
        for name, tensor in self.weights.items():
            if (span := spans.get(name)) is not None:
                row[span] = tensor.reshape(-1).to(row)

    def part(self, name: str, where: slice) -> Tensor:
        """The entries ``where`` of a flattened tensor, which must not be changed."""
        return self.sealed.part(name, where) if self.weights is None else self.weights[name].reshape(-1)[where]

    def not_finite(self) -> str | None:
        """The name of the first tensor with an infinity or a NaN; ``None`` if there is none."""
        if self.weights is None:
            return self.sealed.not_finite()
        return next((name for name, tensor in sorted(self.weights.items()) if not bool(tensor.isfinite().all())), None)

    def check_variances(self) -> None:
        """Check BatchNorm's running variances.

        Raises:
            Refused: one is negative, so that BatchNorm would compute NaN.
        """
        variances = {name for name in self.shapes if is_model(name) and name.endswith(RUNNING_VAR)}
        for name, tensor in sorted(self.tensors(variances).items()):
            if bool((tensor < 0).any()):
                raise Refused(f"{name} is below zero, and should be a variance")


def decoded(upload: Sealed, received: Mapping[str, Tensor]) -> Upload:
    """Decode the compressed changes of an upload to weights.

    Args:
        received: the tensors that the sender was sent, by name, to which the changes are added.

    Raises:
        Refused: a change is not of a tensor in ``received``, or not in one of the forms above.
    """
    if upload.kind != "delta":
        return Upload(upload)
    tensors: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in upload.tensors().items():
        whole, is_part, form = name.partition("~")
        if is_part and is_model(name):
            parts.setdefault(whole, {})[form] = tensor
        else:
            tensors[name] = tensor
    for name in parts:
        if name in tensors or name not in received:
            raise Refused(f"{name} is sent {'whole and in parts' if name in tensors else 'as a change, from nothing'}")
        tensors[name] = _change(name, parts[name], received[name].shape)
    for name, tensor in tensors.items():
        if is_model(name) and name in received:
            if tensor.shape != received[name].shape:
                raise Refused(f"{name} has shape {list(tensor.shape)}, not {list(received[name].shape)}")
            tensors[name] = received[name].cpu() + tensor.float()
    return Upload(upload, tensors)


def _change(name: str, parts: dict[str, Tensor], shape: torch.Size) -> Tensor:
    """The whole change of a tensor, from its parts by suffix."""
    if (indices := parts.pop("indices", None)) is None:
        return _numbers(name, parts, "", shape)
    if indices.dtype != torch.int32 or indices.dim() != 1:
        raise Refused(f"{name}{INDICES} are {indices.dtype} of shape {list(indices.shape)}, not a list of int32")
    if len(indices) and (indices[0] < 0 or indices[-1] >= shape.numel() or bool((indices[1:] <= indices[:-1]).any())):
        raise Refused(f"{name}{INDICES} are not rising numbers of 0..{shape.numel() - 1}")
    change = torch.zeros(shape.numel())
    change[indices.long()] = _numbers(name, parts, "values", indices.shape)
    return change.view(shape)


def _numbers(name: str, parts: Mapping[str, Tensor], inner: str, shape: torch.Size) -> Tensor:
    """Numbers of ``shape`` as float32, which are sent as the part ``inner``, or as codes and a scale."""
    if inner and parts.keys() == {inner}:
        values = parts[inner]
        if values.shape != shape or not values.is_floating_point():
            raise Refused(f"{name}~{inner} are {values.dtype} of shape {list(values.shape)}, not floats of {list(shape)}")
        return values.float()
    scale_name = f"{inner}{SCALE}".removeprefix("~")
    for bits in range(2, 9):
        code_name = codes_name(inner, bits).removeprefix("~")
        if parts.keys() == {code_name, scale_name}:
            return _unscaled(f"{name}~{code_name}", parts[code_name], parts[scale_name], bits, shape)
    listed = ", ".join(sorted(parts))[:64] or "nothing"
    raise Refused(f"{name} is sent as {listed}{' with indices' if inner else ''}, which is no form of a change")


def _unscaled(name: str, codes: Tensor, scale: Tensor, bits: int, shape: torch.Size) -> Tensor:
    """``codes * scale`` as float32 of ``shape``."""
    dtype, packed = (torch.int8, shape) if bits == 8 else (torch.uint8, torch.Size([math.ceil(shape.numel() * bits / 8)]))
    if codes.dtype != dtype or codes.shape != packed:
        raise Refused(f"{name} are {codes.dtype} of shape {list(codes.shape)}, not {dtype} of {list(packed)}")
    filling = 8 * codes.numel() - shape.numel() * bits
    if filling and int(codes[-1]) % 2**filling:
        raise Refused(f"{name} hold more than {shape.numel()} codes")
    if scale.shape != (1,) or not scale.is_floating_point() or not 0 <= float(scale) < math.inf:
        raise Refused(f"{name} have a scale that is not a number from 0 on")
    whole, levels = unpack_codes(codes, bits, shape), 2 ** (bits - 1) - 1
    if whole.numel() and float(whole.abs().max()) > levels:
        raise Refused(f"{name} hold numbers beyond {levels}")
    return whole * scale
