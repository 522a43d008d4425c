"""Attacks of one kind by name. Built-in ones register themselves; others come through an entry-point group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

Attack = TypeVar("Attack")
Class = TypeVar("Class", bound=type[Any])


class ByName(Generic[Attack]):
    """The attacks of one kind.

    Args:
        kind: what one is called in messages.
        group: the entry-point group of other packages' attacks.
        built_in: the modules that register ours.
    """

    def __init__(self, kind: str, group: str, built_in: Sequence[str]) -> None:
        self.kind, self.group, self.built_in = kind, group, built_in
        self._known: dict[str, type[Any]] = {}

    def register(self, name: str) -> Callable[[Class], Class]:
        """Class decorator: make an attack known by ``name``."""

        def remember(attack: Class) -> Class:
            if name in self._known:
                raise ValueError(f"two {self.kind}s are called {name}")
            attack.name = name
            self._known[name] = attack
            return attack

        return remember

    def all(self) -> dict[str, type[Attack]]:
        """All by name, sorted."""
        for module in self.built_in:
            import_module(module)
        plugins = {point.name: point.load() for point in entry_points(group=self.group)}
        return dict(sorted((self._known | plugins).items()))

    def find(self, name: str) -> type[Attack]:
        """The attack of that name.

        Raises:
            KeyError: there is none; the message names the nearest, or lists what there is.
        """
        known = self.all()
        if name not in known:
            raise KeyError(f"unknown {self.kind} {name!r}; {nearest(name, known)}")
        return known[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say to somebody who wrote ``name``: the one of ``known`` that was meant, or all."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
