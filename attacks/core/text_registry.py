"""Attacks that reconstruct text, by name; other packages' come through the entry-point group ``text_attacks``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from fedpriv.attacks.core.by_name import Registry, is_dataclass_of
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.text_reconstruction import TextReconstruction

BUILT_IN = (
    "fedpriv.attacks.text.tokens",
    "fedpriv.attacks.text.tag",
    "fedpriv.attacks.text.span",
    "fedpriv.attacks.malicious.token_imprint",
)


class TextAttack(Protocol):
    """A frozen dataclass whose fields are the attack's options; its docstring's first line says what it does."""

    name: ClassVar[str]

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """Reconstruct the text of independent observations, which hold the same number of sentences each.

        Raises:
            Inapplicable: the attack cannot be mounted on them.
        """


@runtime_checkable
class MaliciousTextAttack(TextAttack, Protocol):
    """An attack of a server that alters what it sends."""

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """What the server sends instead, by name, from an earlier message and token ids of other texts ``(m, L)``.

        Raises:
            Inapplicable: the net does not allow it.
        """


TEXT_ATTACKS: Registry[type[TextAttack]] = Registry(
    "attack on text", "text_attacks", BUILT_IN, is_dataclass_of("run"), "a frozen dataclass with a method run"
)
register, text_attacks, text_attack = TEXT_ATTACKS.register, TEXT_ATTACKS.all, TEXT_ATTACKS.find
