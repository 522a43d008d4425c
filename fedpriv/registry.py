"""Things known by name: a file of a package registers them, and so does another package's entry point."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from fedpriv.errors import UnknownName

T = TypeVar("T", bound=type[Any])


class Registry(Generic[T]):
    """The classes of one kind by name.

    Args:
        kind: what they are called in messages, such as ``method``.
        package: where they live; every module in it is imported before the first look-up. It is also the entry-point group
            through which a third party adds its own.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._known: dict[str, T] = {}
        self._also: dict[str, str] = {}

    def register(self, name: str, *also: str) -> Callable[[T], T]:
        """Class decorator: make a class known by ``name``; it is found by other names, ``also``, but listed and stored under
        that one. Its docstring's first line is its title."""

        def add(one: T) -> T:
            known = self._known.get(name, one)
            if (known.__module__, known.__qualname__) != (one.__module__, one.__qualname__):
                raise ValueError(f"two {self.kind}s are named {name!r}: {known} and {one}")
            one.name = name
            one.title = (one.__doc__ or name).strip().splitlines()[0]
            self._known[name] = one
            self._also |= dict.fromkeys(also, name)
            return one

        return add

    def all(self) -> dict[str, T]:
        """All by name: every module of the package, then other packages' entry points."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.package):
            point.load()
        return dict(sorted(self._known.items()))

    def find(self, name: str) -> T:
        """The class registered as ``name``; :class:`UnknownName` where there is none."""
        known = self.all()
        name = self._also.get(name, name)
        if name not in known:
            raise UnknownName(self.kind, name, known)
        return known[name]
