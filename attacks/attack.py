"""The base class of attacks that reconstruct samples, and their registry; other packages' come through the entry-point group
``attacks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from fedpriv.attacks.core.by_name import Registry
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.text_reconstruction import TextReconstruction

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.attacks.core.observation import Observation
    from fedpriv.attacks.lab.setting import Setting, TextSetting

Modality = Literal["image", "text"]
Result = TypeVar("Result", Reconstruction, TextReconstruction)
Kind = TypeVar("Kind", "ImageAttack", "TextAttack")
BUILT_IN = (
    "fedpriv.attacks.image.dlg",
    "fedpriv.attacks.image.inverting_gradients",
    "fedpriv.attacks.image.head_free",
    "fedpriv.attacks.image.heads",
    "fedpriv.attacks.image.direct",
    "fedpriv.attacks.image.learned_inversion",
    "fedpriv.attacks.malicious.fishing",
    "fedpriv.attacks.malicious.imprint",
    "fedpriv.attacks.text.tokens",
    "fedpriv.attacks.text.tag",
    "fedpriv.attacks.text.span",
    "fedpriv.attacks.malicious.token_imprint",
)


class Attack(Generic[Result]):
    """An attack that reconstructs samples from messages.

    A subclass of :class:`ImageAttack` or :class:`TextAttack` that is a frozen dataclass: its fields are the attack's options, the
    first line of its docstring says what it does. What audits and controls must know of it, it declares as class variables.

    Attributes:
        modality: of the samples.
        control: the setting where it must succeed; ``None``: not known, so a failure of the attack is no evidence.
        usual: options with which audits run it and its controls, where they differ from its defaults; ``None``: audits use
            another attack instead, which does the same better, or it breaks the protocol.
        at_once: the largest number of samples per message at which its control succeeds (measured); ``None``: any number. Audits
            do not try attacks that optimise on more.
        most_steps: the largest number of local steps behind a message on which audits try it; ``None``: any number.
        head: whether it is for messages with the last layer's gradient, for those without, or for either.
        optimises: ``False`` for a closed form, which costs next to nothing for any message.
        simulates: whether it compares the message with that of a client with a cross-entropy, which it simulates; ``False``: it
            works for any loss of the net's outputs.
        one_step: whether it reads a change as the gradient of one step, at the weights that the client began with.
        any_labels: whether it is as good on samples that share classes as on its control's, which all differ (measured).
    """

    name: ClassVar[str]
    modality: ClassVar[Modality]
    control: ClassVar[Setting | TextSetting | None] = None
    usual: ClassVar[Mapping[str, Any] | None] = MappingProxyType({})
    at_once: ClassVar[int | None] = 1
    most_steps: ClassVar[int | None] = None
    head: ClassVar[Literal["shared", "hidden", "either"]] = "either"
    optimises: ClassVar[bool] = True
    simulates: ClassVar[bool] = True
    one_step: ClassVar[bool] = False
    any_labels: ClassVar[bool] = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Result:
        """Reconstruct the samples of independent observations, which hold the same number of them each.

        Raises:
            Inapplicable: the attack cannot be mounted on them.
        """
        raise NotImplementedError

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """Of a malicious server: the tensors that it sends in place of those in ``observation.weights``, by the same names.

        Args:
            observation: an earlier message of the client, which was sent honest weights.
            public: samples of the same kind, none of them the client's: images ``(m, C, H, W)`` in [0, 1], or token ids
                ``(m, L)``.

        Raises:
            Inapplicable: the attack cannot be mounted on such a net.
        """
        raise NotImplementedError

    @classmethod
    def is_malicious(cls) -> bool:
        """Whether the attack is that of a server that alters what it sends; audits of an honest server leave it out."""
        return cls.alter is not Attack.alter

    @classmethod
    def is_beyond(cls, samples: int) -> bool:
        """Whether so many samples behind a message are more than those of its control."""
        return cls.at_once is not None and samples > cls.at_once

    @staticmethod
    def check(observation: Observation) -> None:
        """A cheap check whether the attack can be mounted, before its controls are run.

        Raises:
            Inapplicable: it cannot.
        """

    @staticmethod
    def harder(observation: Observation) -> str | None:
        """In what a message that the attack was mounted on is harder than those of its control, as a clause; ``None``: in nothing
        that only this attack would know."""

    @staticmethod
    def empty(observation: Observation) -> str | None:
        """Why a message shows this attack nothing of any sample, before any defence, as a clause; ``None``: it may."""


class ImageAttack(Attack[Reconstruction]):
    """An attack that reconstructs images; see :class:`Attack`."""

    modality: ClassVar[Modality] = "image"
    control: ClassVar[Setting | None] = None


class TextAttack(Attack[TextReconstruction]):
    """An attack that reconstructs texts; see :class:`Attack`.

    Attributes:
        finds_order: whether it looks for whole sentences, all of a message at once, and not only for their words.
    """

    modality: ClassVar[Modality] = "text"
    control: ClassVar[TextSetting | None] = None
    finds_order: ClassVar[bool] = False


def _is_attack(one: Any) -> bool:
    return isinstance(one, type) and is_dataclass(one) and issubclass(one, ImageAttack | TextAttack)


ATTACKS: Registry[type[ImageAttack] | type[TextAttack]] = Registry(
    "attack", "attacks", BUILT_IN, _is_attack, "a frozen dataclass that inherits ImageAttack or TextAttack"
)
register = ATTACKS.register


def image_attack(name: str) -> type[ImageAttack]:
    """One on images by name.

    Raises:
        KeyError: there is none.
    """
    return _of(ImageAttack, name)


def text_attack(name: str) -> type[TextAttack]:
    """One on texts by name.

    Raises:
        KeyError: there is none.
    """
    return _of(TextAttack, name)


def image_attacks() -> dict[str, type[ImageAttack]]:
    """Those on images by name, sorted."""
    return {name: kind for name, kind in ATTACKS.all().items() if issubclass(kind, ImageAttack)}


def text_attacks() -> dict[str, type[TextAttack]]:
    """Those on texts by name, sorted."""
    return {name: kind for name, kind in ATTACKS.all().items() if issubclass(kind, TextAttack)}


def _of(wanted: type[Kind], name: str) -> type[Kind]:
    kind = ATTACKS.find(name)
    if not issubclass(kind, wanted):
        raise KeyError(f"{name} is an attack on {kind.modality}s, not on {wanted.modality}s")
    return kind
