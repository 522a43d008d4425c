"""Selection of layers by position or by name, for aggregations that treat layers differently."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from fedpriv.errors import UsageError
from fedpriv.interfaces import Context
from fedpriv.parameters import layer_of


def layers_of(parameters: Sequence[str], uncounted: frozenset[str] = frozenset()) -> list[list[str]]:
    """Parameter names grouped by module (a weight with its bias), in the order given.

    Args:
        uncounted: names of tensors that are left out, as they belong to no layer that counts: :func:`uncounted`.
    """
    found: dict[str, list[str]] = {}
    for name in parameters:
        if name not in uncounted:
            found.setdefault(layer_of(name), []).append(name)
    return list(found.values())


def uncounted(context: Context) -> frozenset[str]:
    """The tensors of normalisation layers, which papers do not count as layers, and of those that the logits do not depend on."""
    return context.norms | context.apart


def fitting(parameters: Sequence[str], patterns: Sequence[str], option: str) -> list[str]:
    """The names that fit one of the shell patterns.

    Raises:
        UsageError: a pattern fits none; ``option`` is where it was given.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in parameters):
            raise UsageError(f"{option}: {pattern!r} fits no parameter of the net; there are {', '.join(parameters)}")
    return [name for name in parameters if any(fnmatch(name, pattern) for pattern in patterns)]
