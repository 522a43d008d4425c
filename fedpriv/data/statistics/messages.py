"""The messages of the statistics, in their order; round 0 is theirs.

============  ====  =========================================================================================================
kind          way   content
============  ====  =========================================================================================================
columns       down  the columns of categories without declared levels
levels        up    a client's levels of each of them, without those that too few of its rows have; no counts
inquiry       down  the columns to sum, and the levels to count: those of any client
statistics    up    a client's statistics (:class:`~fedpriv.data.statistics.totals.Totals`); behind masks, as in a secure sum
encoding      down  means, deviations and levels, by which every client scales and codes its rows
============  ====  =========================================================================================================

Names are text: JSON in UTF-8, as a tensor of bytes.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedpriv.wire import Expected, Form, Kind, Payload, Refused, Sealed, seal, statistic

TEXT = statistic("text")
LABEL = b"statistics"
"""The name of their secure sum. Its keys are new ones, and serve no other sum."""
LONGEST = 2**22
"""Bytes of a text."""
T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def text_message(kind: Kind, client: int | None, value: object) -> Sealed:
    """A message that holds a value as text.

    Args:
        client: its sender; ``None``: it is the same for every client.
    """
    return seal(Payload({TEXT: _text(value)}, 0, client, kind))


def value_of(sealed: Sealed, kind: Kind, client: int | None, form: type[T]) -> T:
    """The inverse of :func:`text_message`.

    Raises:
        Refused: the message is another one, or its text does not hold such a value.
    """
    if sealed.nbytes > LONGEST:
        raise Refused(f"a text of {sealed.nbytes:,} bytes; at most {LONGEST:,} are possible")
    tensors = Expected(0, client, {TEXT: Form(("bytes",), torch.uint8)}, kind=kind).check(sealed).tensors()
    try:
        value: T = _adapter(form).validate_json(tensors[TEXT].numpy().tobytes(), strict=False)
    except ValidationError as error:
        raise Refused(f"a message of kind {kind} whose text cannot be read: {error.errors()[0]['msg']}") from None
    return value


def _adapter(form: type[Any]) -> TypeAdapter[Any]:
    """Reads and writes values of a type; kept, as making it takes milliseconds."""
    if form not in _ADAPTERS:
        _ADAPTERS[form] = TypeAdapter(form)
    return _ADAPTERS[form]


def _text(value: object) -> Tensor:
    content = json.dumps(_adapter(type(value)).dump_python(value, mode="json"), ensure_ascii=False).encode()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
