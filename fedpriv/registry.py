"""The registries of fedpriv, whose errors are those of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fedpriv.attacks.core import by_name
from fedpriv.attacks.core.by_name import is_dataclass_of
from fedpriv.errors import FedprivError, UnknownName, UsageError

__all__ = ["Registry", "instance_of", "is_dataclass_of", "subclass_of"]

T = TypeVar("T")


class Registry(by_name.Registry[T], Generic[T]):
    """The things of one kind by name; :meth:`find` raises UnknownName, or UsageError where a plug-in could not be imported."""

    def unknown(self, name: str, where: str = "") -> FedprivError:
        """The error for an unknown name; ``where``: the place of the name, such as ``--defense``, for the message."""
        what = self.kind + (where and f" in {where}")
        if name in self.missing:
            return UsageError(f"{what}: {name!r} is not available: {self.missing[name]}")
        return UnknownName(what, name, self._known)


def subclass_of(base: type[Any]) -> tuple[Callable[[Any], bool], str]:
    """``is_valid`` and ``requirement`` of a :class:`Registry` of classes."""
    return lambda cls: isinstance(cls, type) and issubclass(cls, base), f"a class derived from {base.__name__}"


def instance_of(kind: type[Any]) -> tuple[Callable[[Any], bool], str]:
    """``is_valid`` and ``requirement`` of a :class:`Registry` of objects."""
    return lambda thing: isinstance(thing, kind), f"a {kind.__name__}"
