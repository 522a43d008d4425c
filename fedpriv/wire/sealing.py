"""A sealed message: the bytes that a transport carries, immutable, and what can be read of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors import TensorSpec
from torch import Tensor

from fedpriv.wire.message import Kind, Payload


@dataclass(frozen=True)
class Sealed:
    """A message as it crosses the wire: safetensors bytes, facts in the header. Immutable.

    Attributes:
        data: the bytes.
        facts: round, client, kind, num_examples and transforms, as the header says them.
    """

    data: bytes = field(repr=False)
    round: int
    client: int | None
    kind: Kind
    num_examples: int | None
    transforms: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """What a transport carries, in bytes: header, facts and tensors."""
        return len(self.data)

    def tensors(self, names: Container[str] | None = None) -> dict[str, Tensor]:
        """A fresh copy of the tensors, or of those among ``names``; changing it changes nothing that was sent."""
        return {place.name: _tensor(self.data, place) for place in self._places if names is None or place.name in names}

    def copy_into(self, row: Tensor, spans: Mapping[str, slice]) -> None:
        """Copy the tensors that have a span in ``row`` ``(p,)``, in main memory, there, straight from the bytes."""
        flat = row.numpy()
        for place in self._places:
            if (span := spans.get(place.name)) is not None:
                flat[span] = _array(self.data, place)

    def not_finite(self) -> str | None:
        """The first tensor, by name, that holds an infinity or a NaN; ``None``: there is none."""
        floats = (place for place in self._places if place.code in _FLOATS and place.start < place.stop)
        return next((place.name for place in floats if not np.isfinite(_array(self.data, place)).all()), None)

    @property
    def names(self) -> frozenset[str]:
        """Of the tensors."""
        return frozenset([place.name for place in self._places])

    @property
    def schema(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> (dtype, shape) of every tensor that left the sender."""
        return {place.name: (place.code, place.shape) for place in self._places}

    @cached_property
    def _places(self) -> list[_Place]:
        return _places(self.data)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


_DTYPES = {
    torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip
_CODES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_FLOATS = frozenset(code for code, dtype in _CODES.items() if dtype.is_floating_point)
_ARRAYS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


class _Place(NamedTuple):
    """Where a tensor lies in sealed bytes, as the header says it."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    """What stands before the tensors, and where they begin (safetensors: eight bytes of a length, then JSON)."""
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start].decode()), start


def _places(data: bytes) -> list[_Place]:
    header, start = _header(data)
    del header["__metadata__"]
    places = []
    for name, entry in sorted(header.items()):  # or sums over tensors would depend on how the sender ordered them
        first, last = entry["data_offsets"]
        places.append(_Place(name, entry["dtype"], tuple(entry["shape"]), start + first, start + last))
    return places


def _array(data: bytes, place: _Place) -> NDArray[Any]:
    """The flat values, as a view of the bytes where numpy has their kind of number."""
    kind = _ARRAYS.get(place.code)
    if kind is None:
        return _tensor(data, place).float().reshape(-1).numpy()
    return np.frombuffer(memoryview(data)[place.start : place.stop], kind)


def _tensor(data: bytes, place: _Place) -> Tensor:
    dtype = _CODES[place.code]
    if place.start == place.stop:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(bytearray(memoryview(data)[place.start : place.stop]), dtype=dtype).view(place.shape)


def seal(payload: Payload) -> Sealed:
    """Make the payload bytes.

    The tensors' memory is handed to safetensors directly: its torch front end checks for tensors that share memory, which
    takes longer than writing a small net, and here sharing is the point (the tensors are views of one row).
    """
    facts: dict[str, Any] = {"round": payload.round, "client": payload.client, "kind": payload.kind}
    facts |= {"num_examples": payload.num_examples, "transforms": payload.transforms}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in payload.tensors.items()}
    specs = {
        name: TensorSpec(dtype=_DTYPES[t.dtype], shape=t.shape, data_ptr=t.data_ptr(), data_len=t.nbytes)
        for name, t in tensors.items()
    }
    data = bytes(safetensors.serialize(specs, {"fedpriv": json.dumps(facts)}))
    return Sealed(data, payload.round, payload.client, payload.kind, payload.num_examples, payload.transforms)


def unseal(data: bytes) -> Sealed:
    """The message of which :func:`seal` made these bytes.

    Raises:
        ValueError: in one line; they are not a sealed payload, or not all of one.
    """
    try:
        safetensors.deserialize(data)  # type: ignore[no-untyped-call]
        facts = json.loads(_header(data)[0]["__metadata__"]["fedpriv"])
        transforms = tuple(facts["transforms"])
        return Sealed(data, facts["round"], facts["client"], facts["kind"], facts["num_examples"], transforms)
    except safetensors.SafetensorError as error:
        raise ValueError(f"not whole safetensors bytes ({error})") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError("safetensors bytes without the facts of a sealed payload") from None
