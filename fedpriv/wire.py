"""What crosses the wire: payloads, sealed as the bytes that a transport would carry.

A :class:`Payload` is what a method hands over; transforms (defences, compression) turn it into another one, in the order
of the config; :func:`seal` makes it bytes. The server, the byte meter and the attacker all get the same :class:`Sealed`
object and nothing else. A tensor that a transform removed is absent: not in the bytes, not zero.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors import TensorSpec
from torch import Tensor

Kind = Literal["weights", "delta", "gradient"]
Direction = Literal["down", "up"]

STATISTIC = "statistic."
"""Prefix of tensors that are not the model: class centres, masks, counts, control variates."""


def statistic(what: str, about: str | None = None) -> str:
    """The wire name of a statistic; if it says something of a tensor of the net: ``statistic.variate/encoder.fc.weight``."""
    return f"{STATISTIC}{what}" + (f"/{about}" if about else "")


def tensor_of(name: str) -> str:
    """The net's tensor that a wire name is, or says something of; a mask that hides the tensor hides both."""
    return name.rpartition("/")[2] if name.startswith(STATISTIC) else name


@dataclass(frozen=True)
class Payload:
    """A draft of a message.

    Attributes:
        tensors: by name; model tensors have their parameter's name, others the prefix ``statistic.``.
        round: the round it belongs to (0: the broadcast of the initial model).
        client: the client it comes from or goes to; ``None``: the same to every client.
        kind: what the model tensors are.
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


@dataclass(frozen=True)
class TransformContext:
    """What a transform may use besides the payload.

    Attributes:
        received: what the client was sent this round (the reference of a delta).
        layers: the net's parameter names in forward order.
        generator: a fresh generator for this client, round and transform.
        linear: the names of the net's fully connected layers in forward order, so that "the last N" has a meaning.
        report: told of a number that the user should see (``"snr_db/encoder.fc1"``); the round's record has its mean over the
            clients.
    """

    received: Mapping[str, Tensor]
    layers: Sequence[str]
    generator: torch.Generator
    linear: Sequence[str] = ()
    report: Callable[[str, float], None] = lambda name, value: None


class Transform(Protocol):
    """A step between a client and the wire; ``str(transform)`` is written into the payload's history.

    What it does to the change is public, and attackers are told of it where the class declares it: ``rescales = True`` (the
    change is multiplied by a factor that the server does not know) and ``noise_variance`` (of the noise on every entry).
    """

    def __call__(self, payload: Payload, context: TransformContext) -> Payload: ...


Tap = Callable[[Direction, Sealed], None]
"""Sees every sealed payload, in both directions."""


class ByteMeter:
    """Counts the bytes of a round in both directions."""

    def __init__(self) -> None:
        self.down = 0
        self.up = 0

    def __call__(self, direction: Direction, payload: Sealed) -> None:
        if direction == "down":
            self.down += payload.nbytes
        else:
            self.up += payload.nbytes

    def read(self) -> tuple[int, int]:
        """Bytes (up, down) since the last reading."""
        counted = (self.up, self.down)
        self.up = self.down = 0
        return counted


class Wire:
    """Carries payloads: transforms uploads, seals, shows every tap what crossed."""

    def __init__(self, transforms: Sequence[Transform] = (), taps: Sequence[Tap] = ()) -> None:
        self.transforms = tuple(transforms)
        self.taps = list(taps)

    def upload(self, payload: Payload, contexts: Callable[[int], TransformContext]) -> Sealed:
        """Client -> server. ``contexts(i)`` makes the context of the i-th transform."""
        for index, transform in enumerate(self.transforms):
            payload = transform(payload, contexts(index))
        return self.carry("up", seal(payload))

    def download(self, payload: Payload | Sealed) -> Sealed:
        """Server -> client; what is sent to several clients is sealed once and carried (and counted) each time."""
        return self.carry("down", payload if isinstance(payload, Sealed) else seal(payload))

    def carry(self, direction: Direction, sealed: Sealed) -> Sealed:
        """Show what is sealed to every tap."""
        for tap in self.taps:
            tap(direction, sealed)
        return sealed
