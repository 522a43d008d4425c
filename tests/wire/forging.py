"""Bytes and messages that are nearly right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpriv.wire import Payload, Sealed, seal


def one_line(error: Exception) -> str:
    """What an error says, which is a short line that any terminal can show."""
    message = str(error)
    assert len(message.splitlines()) == 1 and message.isprintable() and len(message) < 500
    return message


def parts(data: bytes) -> tuple[str, bytes]:
    """The header of sealed bytes, without what fills it up, and the tensors' bytes."""
    start = 8 + int.from_bytes(data[:8], "little")
    return data[8:start].decode().rstrip(" "), data[start:]


def joined(header: str | bytes, body: bytes) -> bytes:
    """The way back."""
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def facts_of(data: bytes) -> dict[str, Any]:
    return dict(json.loads(json.loads(parts(data)[0])["__metadata__"]["fedpriv"]))


def with_facts(data: bytes, **facts: Any) -> bytes:
    """With other facts, whatever they are, written as ours are."""
    return with_fact_text(data, json.dumps({**facts_of(data), **facts}))


def with_fact_text(data: bytes, text: str) -> bytes:
    header, body = parts(data)
    old = json.dumps(json.loads(header)["__metadata__"]["fedpriv"])
    return joined(header.replace(old, json.dumps(text), 1), body)


def draft(sealed: Sealed) -> Payload:
    """What was sealed."""
    facts = (sealed.round, sealed.client, sealed.kind, sealed.num_examples, sealed.transforms)
    return Payload(sealed.tensors(), *facts)


def resealed(sealed: Sealed, tensors: dict[str, Tensor | None] | None = None, **facts: Any) -> Sealed:
    """With other facts, and other tensors by name; without those that are ``None``."""
    changed = {**sealed.tensors(), **(tensors or {})}
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    return seal(replace(draft(sealed), tensors=kept, **facts))
