"""Attacks by name. Built-in ones register themselves; others come through the entry-point group ``attacks``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeVar

from attacks.observation import Observation
from attacks.reconstruction import Reconstruction

GROUP = "attacks"
BUILT_IN = ("attacks.dlg", "attacks.inverting_gradients", "attacks.head_free", "attacks.heads", "attacks.direct")


class ImageAttack(Protocol):
    """A frozen dataclass whose fields are the attack's options; its docstring's first line says what it does."""

    name: ClassVar[str]

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """Reconstruct the images of independent observations together.

        Raises:
            Inapplicable: it cannot be mounted on them.
        """


_ATTACKS: dict[str, type[Any]] = {}
Class = TypeVar("Class", bound=type[Any])


def register(name: str) -> Callable[[Class], Class]:
    """Class decorator: make an attack known by ``name``."""

    def remember(attack: Class) -> Class:
        if name in _ATTACKS:
            raise ValueError(f"two attacks are called {name}")
        attack.name = name
        _ATTACKS[name] = attack
        return attack

    return remember


def image_attacks() -> dict[str, type[ImageAttack]]:
    """All attacks that reconstruct images, by name, sorted."""
    for module in BUILT_IN:
        import_module(module)
    plugins = {point.name: point.load() for point in entry_points(group=GROUP)}
    return dict(sorted((_ATTACKS | plugins).items()))


def image_attack(name: str) -> type[ImageAttack]:
    """The attack of that name.

    Raises:
        KeyError: there is none; the message names the nearest, or lists what there is.
    """
    known = image_attacks()
    if name not in known:
        raise KeyError(f"unknown attack {name!r}; {nearest(name, known)}")
    return known[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say to somebody who wrote ``name``: the one of ``known`` that was meant, or all."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
