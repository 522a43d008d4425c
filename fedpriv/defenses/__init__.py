"""Transforms of an upload on its way to the wire, by name and in the order of the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from fedpriv.config import parse
from fedpriv.defenses.cast import Cast
from fedpriv.defenses.mask import Mask
from fedpriv.errors import UnknownName, UsageError
from fedpriv.wire import Transform

_BUILT_IN: dict[str, type[Any]] = {"mask": Mask, "cast": Cast}


def transforms() -> dict[str, type[Any]]:
    """All transforms by name, those of other packages (entry-point group ``fedpriv.transforms``) included."""
    return {**_BUILT_IN, **{point.name: point.load() for point in entry_points(group="fedpriv.transforms")}}


def build_transforms(configured: Sequence[Mapping[str, Any]]) -> list[Transform]:
    """``[{name: mask, roles: [head]}, ...]`` -> the transforms, in that order.

    Raises:
        UsageError: an unknown name or option.
    """
    known, built = transforms(), []
    for index, options in enumerate(configured):
        where = f"wire.transforms[{index}]"
        name = options.get("name")
        if not isinstance(name, str):
            raise UsageError(f"{where}: no name; known: {', '.join(sorted(known))}")
        if name not in known:
            raise UnknownName(f"transform in {where}", name, known)
        built.append(parse(known[name], {key: value for key, value in options.items() if key != "name"}, f"{where} ({name})"))
    return built
