"""Attacks that reconstruct images, by name; other packages' come through the entry-point group ``attacks``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from attacks.core.by_name import Registry, is_dataclass_of
from attacks.core.observation import Observation
from attacks.core.reconstruction import Reconstruction

BUILT_IN = (
    "attacks.image.dlg",
    "attacks.image.inverting_gradients",
    "attacks.image.head_free",
    "attacks.image.heads",
    "attacks.image.direct",
)


class ImageAttack(Protocol):
    """A frozen dataclass whose fields are the attack's options; its docstring's first line says what it does.

    What else its class may declare is in :class:`attacks.lab.setting.Declared`.
    """

    name: ClassVar[str]

    def __hash__(self) -> int: ...

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """Reconstruct the images of independent observations together.

        Raises:
            Inapplicable: the attack cannot be mounted on them.
        """


IMAGE_ATTACKS: Registry[type[ImageAttack]] = Registry(
    "attack", "attacks", BUILT_IN, is_dataclass_of("run"), "a frozen dataclass with a method run"
)
register, image_attacks, image_attack = IMAGE_ATTACKS.register, IMAGE_ATTACKS.all, IMAGE_ATTACKS.find
