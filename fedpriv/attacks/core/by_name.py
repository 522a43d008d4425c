"""A registry of things of one kind by name: built-in ones register themselves, plug-ins come through entry points."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])


class PluginWarning(UserWarning):
    """A plug-in, or a part of one, was left out; the message says what and why. Everything else works."""


class Registry(Generic[T]):
    """The things of one kind by name. If two have the same name, built-in things come first, then plug-ins in order of name.

    Args:
        kind: what a thing is called in messages, such as ``method``.
        group: the entry-point group of other packages. An entry point names the thing itself, or a module that registers its
            things when it is imported.
        built_in: the modules that register the built-in things; a package stands for all its modules. They are imported at the
            first lookup, or when a plug-in registers.
        is_valid: whether an object of a plug-in is of this kind; others are refused, so that listings do not break.
        requirement: what such an object must be, for messages.
    """

    def __init__(self, kind: str, group: str, built_in: Sequence[str], is_valid: Callable[[Any], bool], requirement: str) -> None:
        self.kind, self.group, self.built_in, self.is_valid, self.requirement = kind, group, built_in, is_valid, requirement
        self.missing: dict[str, str] = {}
        """Name of an entry point -> why it could not be loaded."""
        self._known: dict[str, T] = {}
        self._also: dict[str, str] = {}
        self._origins: dict[str, tuple[str, str]] = {}
        """Name -> module and qualified name of what defines it."""
        self._refused: list[Any] = []
        self._asked: set[EntryPoint] = set()
        self._is_complete = False

    def register(self, name: str, *also: str) -> Callable[[Class], Class]:
        """Register the decorated class as ``name``. It is also found by the aliases ``also``, but listed and stored under
        ``name``. Its docstring's first line is its title."""

        def add(cls: Class) -> Class:
            self.add(name, cls, cls, *also)  # type: ignore[arg-type]
            return cls

        return add

    def add(self, name: str, thing: T, origin: Any, *also: str) -> None:
        """Register ``thing`` as ``name``. A plug-in's thing whose name is taken, or which is not of this kind, is left out with
        a :class:`PluginWarning`.

        Args:
            origin: the class or function that defines ``thing``, or the name of its module.

        Raises:
            ValueError: two built-in things have the same name.
        """
        where = (origin, "") if isinstance(origin, str) else (origin.__module__, origin.__qualname__)
        module, _ = where
        if not self._is_ours(module):
            self._load_built_in()
            if not self.is_valid(thing):
                self._refused.append(thing)
                return self._miss(name, f"{name!r} of {module} is no {self.kind}: it must be {self.requirement}")
        for wanted in (name, *also):
            main = self._also.get(wanted, wanted)
            owner = self._origins[main] if main in self._known else where
            if owner != where:  # the same definition may be imported twice
                clash = f"two {self.kind}s are named {wanted!r}: one of {owner[0]}, one of {module}"
                if self._is_ours(module):
                    raise ValueError(clash)
                self._refused.append(thing)
                return _warn(f"{clash}; the latter is left out")
        if isinstance(thing, type):
            thing.name = name  # type: ignore[attr-defined]
            thing.title = (thing.__doc__ or name).strip().splitlines()[0]  # type: ignore[attr-defined]
        self._known[name], self._origins[name] = thing, where
        self._also |= dict.fromkeys(also, name)
        return None

    def all(self) -> dict[str, T]:
        """All things by name, sorted: built-in ones and those of plug-ins that can be imported."""
        self._load_built_in()
        for point in sorted(installed(self.group), key=lambda point: (point.name, point.value)):
            if point not in self._asked:
                self._asked.add(point)
                self._load(point)
        return dict(sorted(self._known.items()))

    def find(self, name: str) -> T:
        """The thing of that name; raises :meth:`unknown` where there is none."""
        known = self.all()
        name = self._also.get(name, name)
        if name not in known:
            raise self.unknown(name)
        return known[name]

    def unknown(self, name: str) -> Exception:
        """The error for an unknown name: its plug-in could not be loaded, or a hint at the nearest name."""
        if name in self.missing:
            return KeyError(f"{self.kind} {name!r} is not available: {self.missing[name]}")
        return KeyError(f"unknown {self.kind} {name!r}; {nearest(name, self._known)}")

    def _is_ours(self, module: str) -> bool:
        return any(f"{module}.".startswith(f"{own}.") for own in self.built_in)

    def _load_built_in(self) -> None:
        if self._is_complete:
            return
        for name in self.built_in:
            for module in pkgutil.iter_modules(getattr(import_module(name), "__path__", ())):
                import_module(f"{name}.{module.name}")
        self._is_complete = True

    def _load(self, point: EntryPoint) -> None:
        """Import what an entry point names, and register it unless the import has done so."""
        called = f"the plug-in {point.name!r} ({point.value}{f' of {point.dist.name}' if point.dist else ''})"
        try:
            thing = point.load()
        except (Exception, SystemExit) as error:  # a broken package must not break the others
            first_line, *_ = str(error).splitlines() or [""]
            return self._miss(point.name, f"{called} cannot be imported: {type(error).__name__}: {first_line}")
        if isinstance(thing, ModuleType) or self._has_met(thing):
            return None
        declared = vars(thing).get("name") if hasattr(thing, "__dict__") else getattr(thing, "name", None)
        return self.add(declared if isinstance(declared, str) else point.name, thing, point.value.partition(":")[0].strip())

    def _has_met(self, thing: Any) -> bool:
        """Whether importing it already registered or refused it (a decorator may have wrapped it)."""
        where = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
        return any(thing is met for met in (*self._known.values(), *self._refused)) or where in self._origins.values()

    def _miss(self, name: str, why: str) -> None:
        self.missing[name] = why
        _warn(why)


@cache
def installed(group: str) -> EntryPoints:
    """The entry points of a group in all installed packages, read once."""
    return entry_points(group=group)


def is_dataclass_of(*methods: str) -> Callable[[Any], bool]:
    """A test whether an object is a dataclass (the class, whose fields are options) with methods of these names."""
    return lambda cls: isinstance(cls, type) and is_dataclass(cls) and all(callable(getattr(cls, name, None)) for name in methods)


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint for a mistyped ``name``: the nearest of ``known``, or all of them."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def _warn(text: str) -> None:
    warnings.warn(text, PluginWarning, stacklevel=2)
