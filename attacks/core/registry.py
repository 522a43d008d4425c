"""Attacks that reconstruct images, by name; other packages' come through the entry-point group ``attacks``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from fedpriv.attacks.core.by_name import Registry, is_dataclass_of
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Reconstruction

BUILT_IN = (
    "fedpriv.attacks.image.dlg",
    "fedpriv.attacks.image.inverting_gradients",
    "fedpriv.attacks.image.head_free",
    "fedpriv.attacks.image.heads",
    "fedpriv.attacks.image.direct",
    "fedpriv.attacks.image.learned_inversion",
    "fedpriv.attacks.malicious.fishing",
    "fedpriv.attacks.malicious.imprint",
)


class ImageAttack(Protocol):
    """A frozen dataclass whose fields are the attack's options; its docstring's first line says what it does.

    What else its class may declare is in :class:`fedpriv.attacks.lab.setting.Declared`.
    """

    name: ClassVar[str]

    def __hash__(self) -> int: ...

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """Reconstruct the images of independent observations together.

        Raises:
            Inapplicable: the attack cannot be mounted on them.
        """


@runtime_checkable
class MaliciousAttack(ImageAttack, Protocol):
    """An attack of a server that alters the weights that it sends; audits of an honest server leave it out (``usual = None``)."""

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """The tensors that the server sends in place of those in ``observation.weights``, by the same names.

        Args:
            observation: an earlier message of the client, which was sent honest weights.
            public: images ``(m, C, H, W)`` in [0, 1] of the same kind, none of them the client's.

        Raises:
            Inapplicable: the attack cannot be mounted on such a net.
        """


IMAGE_ATTACKS: Registry[type[ImageAttack]] = Registry(
    "attack", "attacks", BUILT_IN, is_dataclass_of("run"), "a frozen dataclass with a method run"
)
register, image_attacks, image_attack = IMAGE_ATTACKS.register, IMAGE_ATTACKS.all, IMAGE_ATTACKS.find
