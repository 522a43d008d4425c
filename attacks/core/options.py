"""The options of an attack, which are the fields of its dataclass, their ranges, and the check of values that a user gives."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from typing import Any

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
MOST = 1_000_000
"""Of a whole number, unless the option says otherwise."""


def ranged(default: Any, least: int = 0, most: int = MOST) -> Any:
    """A field whose whole numbers are from ``least`` to ``most``; without it they begin at 1, or at a default of 0."""
    return field(default=default, metadata={"least": least, "most": most})


def optional(kind: type) -> Any:
    """A field of that kind which is ``None`` unless it is given; without it, one whose default is ``None`` is a whole number."""
    return field(default=None, metadata={"kind": kind})


def defaults_of(attack: Any) -> dict[str, Any]:
    """The defaults of an attack or its class, by option name."""
    return {field.name: field.default for field in fields(attack)}


def taken(attack: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The values of options that an attack or its class has: each of its default's kind, and within its range.

    Raises:
        TypeError: one is not; the message says what would be.
    """
    by_name = {field.name: field for field in fields(attack)}
    return {option: _like(by_name[option], by_name[option].default, value) for option, value in given.items()}


def _like(option: Field[Any], default: Any, value: Any) -> Any:
    """A number, a flag, a word, or several of these."""
    if default is MISSING or (default is None and value is None):
        return value
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise TypeError(f"{option.name} must be {len(default)} values such as {list(default)}, not {value!r}")
        return tuple(_like(option, one, other) for one, other in zip(default, value, strict=True))
    kind = option.metadata.get("kind", int) if default is None else type(default)
    if kind is float and type(value) is int:
        value = float(value)
    least, most = 0.0, float("inf")
    if kind is int:
        least, most = option.metadata.get("least", 0 if default == 0 else 1), option.metadata.get("most", MOST)
    in_range = type(value) is kind and (kind not in (int, float) or (least <= value <= most and value < float("inf")))
    if not in_range:
        of_range = f" from {least} to {most}" if kind is int else ", at least 0" if kind is float else ""
        raise TypeError(f"{option.name} must be {_KINDS.get(kind, f'a {kind.__name__}')}{of_range}, not {value!r}")
    return value
