"""Attacks on text by name, beside those on images (:mod:`attacks.registry`); others come through the group ``text_attacks``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeVar

from attacks.observation import Observation
from attacks.registry import nearest
from attacks.text_reconstruction import TextReconstruction

GROUP = "text_attacks"
BUILT_IN = ("attacks.tokens", "attacks.tag", "attacks.text_span")


class TextAttack(Protocol):
    """A frozen dataclass whose fields are the attack's options; its docstring's first line says what it does."""

    name: ClassVar[str]

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """Reconstruct the text of independent observations of as many sentences each.

        Raises:
            Inapplicable: it cannot be mounted on them.
        """


_ATTACKS: dict[str, type[Any]] = {}
Class = TypeVar("Class", bound=type[Any])


def register(name: str) -> Callable[[Class], Class]:
    """Class decorator: make an attack on text known by ``name``."""

    def remember(attack: Class) -> Class:
        if name in _ATTACKS:
            raise ValueError(f"two attacks on text are called {name}")
        attack.name = name
        _ATTACKS[name] = attack
        return attack

    return remember


def text_attacks() -> dict[str, type[TextAttack]]:
    """All attacks that reconstruct text, by name, sorted."""
    for module in BUILT_IN:
        import_module(module)
    plugins = {point.name: point.load() for point in entry_points(group=GROUP)}
    return dict(sorted((_ATTACKS | plugins).items()))


def text_attack(name: str) -> type[TextAttack]:
    """The attack of that name.

    Raises:
        KeyError: there is none; the message names the nearest, or lists what there is.
    """
    known = text_attacks()
    if name not in known:
        raise KeyError(f"unknown attack on text {name!r}; {nearest(name, known)}")
    return known[name]
