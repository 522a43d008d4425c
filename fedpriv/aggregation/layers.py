"""Selection of layers by position or by name, for aggregations that treat layers differently."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from fedpriv.errors import UsageError


def layers_of(parameters: Sequence[str], norms: frozenset[str] = frozenset()) -> list[list[str]]:
    """Parameter names grouped by module (a weight with its bias), in the order given, without those of ``norms``.

    Args:
        norms: names of tensors of normalisation layers, which papers do not count as layers.
    """
    found: dict[str, list[str]] = {}
    for name in parameters:
        if name not in norms:
            found.setdefault(name.rpartition(".")[0], []).append(name)
    return list(found.values())


def fitting(parameters: Sequence[str], patterns: Sequence[str], option: str) -> list[str]:
    """The names that fit one of the shell patterns.

    Raises:
        UsageError: a pattern fits none; ``option`` is where it was given.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in parameters):
            raise UsageError(f"{option}: {pattern!r} fits no parameter of the net; there are {', '.join(parameters)}")
    return [name for name in parameters if any(fnmatch(name, pattern) for pattern in patterns)]
