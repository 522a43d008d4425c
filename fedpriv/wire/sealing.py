"""A sealed message: the immutable bytes that a transport carries.

The bytes are a safetensors file in the canonical form that :func:`seal` writes. :func:`unseal` refuses all others at the first
wrong byte, and allocates no memory for what a header claims.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_left
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from safetensors import TensorSpec
from torch import Tensor

from fedpriv.wire.message import Kind, Payload, Refused

LONGEST_HEADER = 2**18
"""Bytes of names, shapes and facts; a tensor takes about 100 (a ResNet-152 has 930 tensors)."""
MOST_EXAMPLES = 2**53
"""Whole numbers up to this one are exact in float64."""
_MOST = 2**31 - 1  # rounds and clients

_DTYPES = {
    torch.int64: ("I64", "int64"), torch.float64: ("F64", "float64"), torch.float32: ("F32", "float32"),
    torch.int32: ("I32", "int32"), torch.bfloat16: ("BF16", "bfloat16"), torch.float16: ("F16", "float16"),
    torch.int16: ("I16", "int16"), torch.int8: ("I8", "int8"), torch.uint8: ("U8", "uint8"), torch.bool: ("BOOL", "bool"),
}  # fmt: skip
"""The dtypes of a message, with their two names in safetensors, in the order of the tensors in the bytes."""
CODES = {code: dtype for dtype, (code, _) in _DTYPES.items()}
"""The dtypes by their names in a header."""
_RANKS = {code: (rank, dtype.itemsize) for rank, (code, dtype) in enumerate(CODES.items())}
_FLOATS = frozenset(code for code, dtype in CODES.items() if dtype.is_floating_point)
_ARRAYS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class _Facts:
    """The facts of a header, in this order. A transform's name is a printable line."""

    round: Annotated[int, Field(ge=0, le=_MOST)]
    client: Annotated[int, Field(ge=0, le=_MOST)] | None
    kind: Kind
    num_examples: Annotated[int, Field(ge=0, le=MOST_EXAMPLES)] | None
    transforms: Annotated[tuple[Annotated[str, Field(max_length=4096, pattern=r"^\PC+$")], ...], Field(max_length=64)]


_FACTS = TypeAdapter(_Facts)
_OPENING = re.compile(r'\{"__metadata__":\{"fedpriv":("(?:[^"\\]|\\.)*+")\}', re.ASCII)
_ENTRY = re.compile(
    r',"([^"\\]{1,256})":'
    r'\{"dtype":"([A-Z0-9]{2,4})",'
    r'"shape":\[((?:[0-9]{1,16}(?:,[0-9]{1,16}){0,15})?)\],'
    r'"data_offsets":\[([0-9]{1,16},[0-9]{1,16})\]\}',
    re.ASCII,
)
_CLOSING = re.compile(r"\} {0,7}", re.ASCII)


class _Place(NamedTuple):
    """The place of a tensor in the bytes."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Sealed:
    """A message as it crosses the wire: safetensors bytes, facts in the header. Immutable.

    Attributes:
        data: the bytes.
        round, client, kind, num_examples, transforms: its facts, as in :class:`Payload`.
        places: of the tensors in the bytes, ordered by name.
    """

    data: bytes = field(repr=False)
    round: int
    client: int | None
    kind: Kind
    num_examples: int | None
    transforms: tuple[str, ...]
    places: tuple[_Place, ...] = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Number of bytes that a transport carries."""
        return len(self.data)

    def tensors(self, names: Container[str] | None = None) -> dict[str, Tensor]:
        """Copies of the tensors, or of those among ``names``."""
        return {place.name: _tensor(self.data, place) for place in self.places if names is None or place.name in names}

    def copy_into(self, row: Tensor, spans: Mapping[str, slice]) -> None:
        """Copy the tensors that have a span into ``row`` ``(p,)``, a CPU tensor, directly from the bytes."""
        flat = row.numpy()
        for place in self.places:
            if (span := spans.get(place.name)) is not None:
                flat[span] = _array(self.data, place)

    def part(self, name: str, where: slice) -> Tensor:
        """The entries ``where`` of a flattened tensor, copied from the bytes."""
        place = self.places[bisect_left(self.places, name, key=lambda place: place.name)]
        size = CODES[place.code].itemsize
        span = slice(place.start + where.start * size, place.start + where.stop * size)
        return torch.frombuffer(bytearray(memoryview(self.data)[span]), dtype=CODES[place.code])

    def not_finite(self) -> str | None:
        """The name of the first tensor with an infinity or a NaN; ``None``: there is none."""
        floats = (place for place in self.places if place.code in _FLOATS and place.start < place.stop)
        return next((place.name for place in floats if not np.isfinite(_array(self.data, place)).all()), None)

    @property
    def names(self) -> frozenset[str]:
        """The names of the tensors."""
        return frozenset([place.name for place in self.places])

    @property
    def schema(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> (dtype, shape) of every tensor."""
        return {place.name: (place.code, place.shape) for place in self.places}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def seal(payload: Payload) -> Sealed:
    """Serialise a payload.

    The tensors' memory is passed to safetensors directly. Its torch front end checks for tensors that share memory, which takes
    longer than writing a small net, and the tensors are views of one row.

    Raises:
        Refused: a message cannot hold a name, a dtype or a fact of it.
    """
    facts: dict[str, Any] = {"round": payload.round, "client": payload.client, "kind": payload.kind}
    facts |= {"num_examples": payload.num_examples, "transforms": payload.transforms}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in payload.tensors.items()}
    if strange := next((name for name, tensor in tensors.items() if tensor.dtype not in _DTYPES), None):
        raise Refused(f"{strange} is of {tensors[strange].dtype}, which no message holds")
    specs = {
        name: TensorSpec(dtype=_DTYPES[t.dtype][1], shape=t.shape, data_ptr=t.data_ptr(), data_len=t.nbytes)
        for name, t in tensors.items()
    }
    return unseal(bytes(safetensors.serialize(specs, {"fedpriv": json.dumps(facts)})))


def unseal(data: bytes) -> Sealed:
    """The message in the bytes.

    Raises:
        Refused: they are not bytes that :func:`seal` writes.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise Refused("not whole safetensors bytes: they end within their header")
    if start - 8 > LONGEST_HEADER:
        raise Refused(f"safetensors bytes with a header of {start - 8} bytes; at most {LONGEST_HEADER}")
    try:
        header = data[8:start].decode()
    except UnicodeDecodeError:
        raise Refused("safetensors bytes with a header that is no UTF-8") from None
    opening = _OPENING.match(header)
    if opening is None:
        raise Refused("safetensors bytes without the facts of a sealed payload")
    facts = _facts(opening[1])
    places, end = _places(header, opening.end(), start, data)
    if start % 8 or not _CLOSING.fullmatch(header, end):
        raise Refused(f"safetensors bytes with a header that is not ours from character {end} on")
    return Sealed(data, facts.round, facts.client, facts.kind, facts.num_examples, facts.transforms, places)


def _facts(quoted: str) -> _Facts:
    """The facts of a header, which are a JSON text within a JSON string."""
    try:
        text: str = json.loads(quoted)
        facts = _FACTS.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:64]
        raise Refused(f"safetensors bytes with facts that cannot be: {where!r}: {first['msg'].splitlines()[0]}") from None
    except ValueError:
        raise Refused("safetensors bytes with facts that are no JSON string") from None
    if facts.num_examples == 0 and facts.kind != "report":  # a client without test samples reports on none
        raise Refused("safetensors bytes with facts that cannot be: 'num_examples': 0")
    values = {name: getattr(facts, name) for name in _Facts.__dataclass_fields__}
    if json.dumps(json.dumps(values)) != quoted:
        raise Refused("safetensors bytes with facts that are not written as ours are")
    return facts


def _places(header: str, position: int, start: int, data: bytes) -> tuple[tuple[_Place, ...], int]:
    """The places of the tensors that a header lists from ``position`` on, ordered by name, and the position where the list ends.

    The first tensor begins at ``start``, each of the others at the end of the one before, and the last one ends with the data.
    """
    places: list[_Place] = []
    first, last = start, (-1, "")
    while entry := _ENTRY.match(header, position):
        name, code, shape, offsets = entry.groups()
        position = entry.end()
        if code not in _RANKS or not name.isprintable():
            raise Refused(f"safetensors bytes with a tensor {name!r} of {code}, which no message holds")
        rank, itemsize = _RANKS[code]
        sizes = tuple(map(int, shape.split(","))) if shape else ()
        stop = first + math.prod(sizes) * itemsize
        # Compared as text, which refuses leading zeros as well as gaps and overlaps.
        if shape != ",".join(map(str, sizes)) or offsets != f"{first - start},{stop - start}" or stop > len(data):
            raise Refused(f"not whole safetensors bytes: {name} has shape [{shape}] and offsets [{offsets}]")
        if (rank, name) <= last:
            raise Refused(f"safetensors bytes with {name} out of order")
        if stop == first and math.prod(size or 1 for size in sizes) > MOST_EXAMPLES:  # otherwise the number of bytes bounds it
            raise Refused(f"safetensors bytes with a tensor {name} of shape [{shape}], which no message holds")
        if code == "BOOL" and stop > first and np.frombuffer(data, np.uint8, stop - first, first).max() > 1:
            raise Refused(f"safetensors bytes with a truth value in {name} that is neither true nor false")
        places.append(_Place(name, code, sizes, first, stop))
        first, last = stop, (rank, name)
    if first != len(data):
        raise Refused(f"not whole safetensors bytes: tensors for {first - start} of {len(data) - start} bytes")
    if len({place.name for place in places}) < len(places):
        raise Refused("safetensors bytes with a tensor twice")
    # By name, so that sums over tensors do not depend on the sender's order.
    return tuple(sorted(places)), position


def _array(data: bytes, place: _Place) -> NDArray[Any]:
    """The flat values, as a view of the bytes if numpy has the dtype."""
    kind = _ARRAYS.get(place.code)
    if kind is None:
        return _tensor(data, place).float().reshape(-1).numpy()
    return np.frombuffer(memoryview(data)[place.start : place.stop], kind)


def _tensor(data: bytes, place: _Place) -> Tensor:
    dtype = CODES[place.code]
    if place.start == place.stop:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(bytearray(memoryview(data)[place.start : place.stop]), dtype=dtype).view(place.shape)
