"""Values as they were given: whether each is of the kind that was made of it, and how it is shown in a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.errors import UsageError
from fedpriv.untrusted.addresses import said_safely
from fedpriv.untrusted.names import shortened

_SMALLEST, _LARGEST = 2.0**-126, 2.0**128
"""Of the numbers in float32, the precision of training."""


def check_kinds(given: Any, made: Any, where: str, path: str = "") -> None:
    """Refuse what pydantic turns into a number or a flag although it is none, and what is empty or no number in float32."""
    wrong = None
    if given == "":
        wrong = "should not be empty"
    elif isinstance(made, bool) != isinstance(given, bool) and isinstance(made, int | float):
        wrong = "should be true or false" if isinstance(made, bool) else "should be a number"
    elif isinstance(made, int | float) and isinstance(given, str):
        wrong = "should be a number"
    elif isinstance(made, float) and made and not _SMALLEST <= abs(made) < _LARGEST:
        wrong = "should be a number that float32 can hold: 0, or 1.2e-38 to 3.4e38"
    if wrong:
        raise UsageError(f"{where}: {path} = {brief(given)}: {wrong}")
    if isinstance(given, Mapping):
        for key, value in given.items():
            inner = made.get(key) if isinstance(made, Mapping) else getattr(made, str(key), None)
            check_kinds(value, inner, where, f"{path}.{key}" if path else str(key))
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple) and len(given) == len(made):
        for number, (value, inner) in enumerate(zip(given, made, strict=True)):
            check_kinds(value, inner, where, f"{path}.{number}")


def brief(value: Any) -> str:
    """A value for a message: on one line, without secrets, cut where it is long."""
    return shortened(said_safely(repr(value)), 120, 15)
