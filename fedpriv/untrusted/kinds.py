"""Checks that given values have the type that they were parsed to, and shows them in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.errors import UsageError
from fedpriv.untrusted.addresses import hide_secrets
from fedpriv.untrusted.names import shortened

_SMALLEST, _LARGEST = 2.0**-126, 2.0**128
"""The range of normal float32 numbers."""


def check_kinds(given: Any, parsed: Any, where: str, path: str = "") -> None:
    """Refuse values that pydantic would convert to a number or a flag, empty texts, and numbers out of the range of float32."""
    wrong = None
    if given == "":
        wrong = "should not be empty"
    elif isinstance(parsed, bool) != isinstance(given, bool) and isinstance(parsed, int | float):
        wrong = "should be true or false" if isinstance(parsed, bool) else "should be a number"
    elif isinstance(parsed, int | float) and isinstance(given, str):
        wrong = "should be a number"
    elif isinstance(parsed, float) and parsed and not _SMALLEST <= abs(parsed) < _LARGEST:
        wrong = "should be a number that float32 can hold: 0, or 1.2e-38 to 3.4e38"
    if wrong:
        raise UsageError(f"{where}: {path} = {brief(given)}: {wrong}")
    if isinstance(given, Mapping):
        for key, value in given.items():
            inner = parsed.get(key) if isinstance(parsed, Mapping) else getattr(parsed, str(key), None)
            check_kinds(value, inner, where, f"{path}.{key}" if path else str(key))
    elif isinstance(given, list | tuple) and isinstance(parsed, list | tuple) and len(given) == len(parsed):
        for number, (value, inner) in enumerate(zip(given, parsed, strict=True)):
            check_kinds(value, inner, where, f"{path}.{number}")


def brief(value: Any) -> str:
    """A value for a message: on one line, without secrets, shortened."""
    return shortened(hide_secrets(repr(value)), 120, 15)
