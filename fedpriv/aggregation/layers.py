"""Selects layers by position or name, for aggregations that treat layers differently."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from fedpriv.errors import UsageError
from fedpriv.interfaces import Context
from fedpriv.parameters import layer_of


def layers_of(parameters: Sequence[str], uncounted: frozenset[str] = frozenset()) -> list[list[str]]:
    """Parameter names grouped by layer (a weight with its bias), in the given order.

    Args:
        uncounted: names to leave out, usually those of :func:`uncounted`.
    """
    layers: dict[str, list[str]] = {}
    for name in parameters:
        if name not in uncounted:
            layers.setdefault(layer_of(name), []).append(name)
    return list(layers.values())


def uncounted(context: Context) -> frozenset[str]:
    """Tensors that do not count as layers: those of normalisation layers, and those that the logits do not depend on."""
    return context.norms | context.apart


def matching(parameters: Sequence[str], patterns: Sequence[str], option: str) -> list[str]:
    """The names that match one of the shell patterns, which the user gave under ``option``.

    Raises:
        UsageError: a pattern matches no name.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in parameters):
            raise UsageError(f"{option}: {pattern!r} matches no parameter of the net; there are {', '.join(parameters)}")
    return [name for name in parameters if any(fnmatch(name, pattern) for pattern in patterns)]
