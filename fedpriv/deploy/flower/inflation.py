"""How much larger than what crossed an array of Flower's may become, as it may name one of its chunks as often as it likes; and
how much larger than what was sent a reply may be."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import get_object_body

from fedpriv.deploy.stream import Broken

LEAST = 2**26
"""Bytes that are not too many, whatever crossed."""
GROWTH = 16
"""Times what crossed that it may be above that: equal parts of a net, such as zeros, cross once."""


def most_of(crossed: int) -> int:
    """Bytes that what crossed may become, or may be answered with."""
    return max(LEAST, GROWTH * crossed)


def check_growth(size: int, crossed: int) -> None:
    """Refuse what is much larger than the bytes that crossed for it.

    Raises:
        Broken: how large it is.
    """
    if size > most_of(crossed):
        raise Broken(f"arrays of {size} bytes, of which {crossed} crossed")


def bound_inflation() -> None:
    """Have Flower, in this process, refuse an array that is not made of chunks, or outgrows them, before it is made."""
    array: Any = Array
    array.inflate = classmethod(_inflate)


_INFLATE: Any = vars(Array)["inflate"].__func__
"""Flower's own."""


def _inflate(cls: Any, object_content: bytes, children: dict[str, Any] | None = None) -> Any:
    chunks = list[Any]((children or {}).values())
    if not all(isinstance(one, ArrayChunk) for one in chunks):
        raise Broken("an array that is not made of chunks")
    sizes = [len(one.data) for one in chunks]
    named = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
    check_growth(len(named) * max(sizes, default=0), sum(sizes))
    return _INFLATE(cls, object_content, children)
