"""The options of an attack, which are the fields of its dataclass, and the check of values that a user gives them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

_KINDS = {bool: "true or false", int: "a whole number, at least 0", float: "a number, at least 0", str: "a word"}


def defaults_of(attack: Any) -> dict[str, Any]:
    """The defaults of an attack or its class, by option name."""
    return {field.name: field.default for field in fields(attack)}


def like(default: Any, value: Any, option: str) -> Any:
    """``value`` in the type of the option's default: a number of at least 0, a flag, a word, or several of these.

    Raises:
        TypeError: it does not fit; the message says what would.
    """
    if default is MISSING or (default is None and value is None):
        return value
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise TypeError(f"{option} must be {len(default)} values such as {list(default)}, not {value!r}")
        return tuple(like(one, other, option) for one, other in zip(default, value, strict=True))
    kind = int if default is None else type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind in (int, float) and not 0 <= value < float("inf")):
        raise TypeError(f"{option} must be {_KINDS.get(kind, f'a {kind.__name__}')}, not {value!r}")
    return value
