"""The options of an attack (the fields of its dataclass), their ranges, and the check of given values."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from typing import Any

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
MOST = 1_000_000
"""Largest value of a whole number, unless the option has another."""


def ranged(default: Any, least: int = 0, most: int = MOST) -> Any:
    """A field of a whole number from ``least`` to ``most``.

    Whole-number fields not declared by this have minimum 1, or 0 if their default is 0.
    """
    return field(default=default, metadata={"least": least, "most": most})


def optional(kind: type) -> Any:
    """A field of a type whose default is ``None``. Other fields with that default are whole numbers."""
    return field(default=None, metadata={"kind": kind})


def defaults_of(attack: Any) -> dict[str, Any]:
    """The defaults of an attack or its class, by option name."""
    return {field.name: field.default for field in fields(attack)}


def taken(attack: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Check the values of options of an attack or its class: each has its default's type, and is within its range.

    Raises:
        TypeError: a value is not valid; the message says what would be.
    """
    by_name = {field.name: field for field in fields(attack)}
    return {option: _like(by_name[option], by_name[option].default, value) for option, value in given.items()}


def _like(option: Field[Any], default: Any, value: Any) -> Any:
    """The value, if it is a number, a flag or a word like the default, or several of these."""
    if default is MISSING or (default is None and value is None):
        return value
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise TypeError(f"{option.name} must be {len(default)} values such as {list(default)}, not {value!r}")
        return tuple(_like(option, *pair) for pair in zip(default, value, strict=True))
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
