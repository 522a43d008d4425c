"""The base classes of attacks that reconstruct samples, and their registry. Other packages add attacks through the entry-point
group ``attacks``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from fedpriv.attacks.core.by_name import Registry
from fedpriv.attacks.core.reconstruction import Reconstruction, SingleReconstruction, together
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.core.text_reconstruction import TextReconstruction

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.attacks.core.observation import Observation
    from fedpriv.attacks.lab.setting import RowSetting, Setting, TextSetting

Modality = Literal["image", "text", "row"]
Result = TypeVar("Result", Reconstruction, TextReconstruction, RowReconstruction)
Kind = TypeVar("Kind", "ImageAttack", "TextAttack", "RowAttack")
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
    "fedpriv.attacks.rows.closed_form",
    "fedpriv.attacks.rows.tableak",
    "fedpriv.attacks.rows.learned_rows",
)


class Attack(Generic[Result]):
    """An attack that reconstructs samples from messages.

    An attack is a frozen dataclass that inherits :class:`ImageAttack`, :class:`TextAttack` or :class:`RowAttack`. Its fields are
    the attack's options, and the first line of its docstring is its description. Its class variables are for audits and controls.

    Attributes:
        modality: of the samples.
        control: the setting in which it must succeed; ``None``: none is known, so its failure is no evidence.
        audit_options: options of audits and their controls that differ from the defaults; ``None``: audits do not run it, as
            another attack does the same better, or as it breaks the protocol.
        max_batch: the largest number of samples per message at which its control succeeds (measured); ``None``: any number.
            Audits do not run an attack that optimises on messages with more samples.
        most_steps: the largest number of local steps per message on which audits run it; ``None``: any number.
        head: whether it is for messages with the last layer's gradient, for messages without, or for either.
        optimises: ``False`` for a closed form, which costs next to nothing.
        simulates: whether it simulates a client that minimises a cross-entropy; ``False``: it works for any loss of the net's
            outputs.
        one_step: whether it takes a change of the weights for the gradient of one step at the client's first weights.
        any_labels: whether it works as well when samples of a message share a class (measured); those of its control never do.
    """

    name: ClassVar[str]
    modality: ClassVar[Modality]
    control: ClassVar[Setting | TextSetting | RowSetting | None] = None
    audit_options: ClassVar[Mapping[str, Any] | None] = MappingProxyType({})
    max_batch: ClassVar[int | None] = 1
    most_steps: ClassVar[int | None] = None
    head: ClassVar[Literal["shared", "hidden", "either"]] = "either"
    optimises: ClassVar[bool] = True
    simulates: ClassVar[bool] = True
    one_step: ClassVar[bool] = False
    any_labels: ClassVar[bool] = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Result:
        """Reconstruct the samples of independent observations, each of the same number of samples.

        Raises:
            Inapplicable: the attack cannot be run on them.
        """
        raise NotImplementedError

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """The tensors that a malicious server sends in place of those in ``observation.weights``, by the same names.

        Args:
            observation: an earlier message of the client, which was sent honest weights.
            public: samples of the same kind, none of them the client's: images ``(m, C, H, W)`` in [0, 1], token ids ``(m, L)``,
                or rows ``(m, F)``.

        Raises:
            Inapplicable: the attack cannot alter such a net.
        """
        raise NotImplementedError

    @classmethod
    def is_malicious(cls) -> bool:
        """Whether the server alters what it sends; audits of an honest server leave such an attack out."""
        return cls.alter is not Attack.alter

    @classmethod
    def exceeds_control(cls, samples: int) -> bool:
        """Whether so many samples per message are more than in its control."""
        return cls.max_batch is not None and samples > cls.max_batch

    @staticmethod
    def check(observation: Observation) -> None:
        """Check cheaply, before the controls are run, whether the attack can be run.

        Raises:
            Inapplicable: it cannot.
        """

    @staticmethod
    def harder(observation: Observation) -> str | None:
        """A clause on how a message is harder for this attack than those of its control; ``None``: it is not."""

    @staticmethod
    def empty(observation: Observation) -> str | None:
        """A clause on why a message, even without a defence, shows this attack nothing of any sample; ``None``: it may show
        something."""


class ImageAttack(Attack[Reconstruction]):
    """An attack that reconstructs images; see :class:`Attack`."""

    modality: ClassVar[Modality] = "image"
    control: ClassVar[Setting | None] = None


class ByMessage(ImageAttack):
    """An attack on images that gains nothing from a batch of messages."""

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        return together(observations, lambda observation: self.single(observation, seed))

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        """Reconstruct the images of one message.

        Raises:
            Inapplicable: the attack cannot be run on it.
        """
        raise NotImplementedError


class TextAttack(Attack[TextReconstruction]):
    """An attack that reconstructs texts; see :class:`Attack`.

    Attributes:
        finds_order: whether it looks for whole sentences, and not only for the words of a message.
    """

    modality: ClassVar[Modality] = "text"
    control: ClassVar[TextSetting | None] = None
    finds_order: ClassVar[bool] = False


class RowAttack(Attack[RowReconstruction]):
    """An attack that reconstructs rows of a table; see :class:`Attack`."""

    modality: ClassVar[Modality] = "row"
    control: ClassVar[RowSetting | None] = None

    @classmethod
    def most_rows(cls, observation: Observation) -> int | None:
        """The largest number of rows per message that its control covers, for a table with such columns; ``None``: any number."""
        return cls.max_batch


def _is_attack(thing: Any) -> bool:
    return isinstance(thing, type) and is_dataclass(thing) and issubclass(thing, ImageAttack | TextAttack | RowAttack)


ATTACKS: Registry[type[ImageAttack] | type[TextAttack] | type[RowAttack]] = Registry(
    "attack", "attacks", BUILT_IN, _is_attack, "a frozen dataclass that inherits ImageAttack, TextAttack or RowAttack"
)
register = ATTACKS.register


def image_attack(name: str) -> type[ImageAttack]:
    """An attack on images by name; :class:`KeyError` if there is none."""
    return _find(ImageAttack, name)


def text_attack(name: str) -> type[TextAttack]:
    """An attack on texts by name; :class:`KeyError` if there is none."""
    return _find(TextAttack, name)


def row_attack(name: str) -> type[RowAttack]:
    """An attack on rows of a table by name; :class:`KeyError` if there is none."""
    return _find(RowAttack, name)


def image_attacks() -> dict[str, type[ImageAttack]]:
    """All attacks on images by name, sorted."""
    return _all(ImageAttack)


def text_attacks() -> dict[str, type[TextAttack]]:
    """All attacks on texts by name, sorted."""
    return _all(TextAttack)


def row_attacks() -> dict[str, type[RowAttack]]:
    """All attacks on rows of a table by name, sorted."""
    return _all(RowAttack)


def for_audits(kinds: Iterable[type[Kind]], hidden: bool) -> list[tuple[type[Kind], Mapping[str, Any]]]:
    """The attacks that audits run, with the options that differ from the defaults; closed forms first.

    Args:
        hidden: whether the last layer was not sent.
    """
    wanted = ("either", "hidden" if hidden else "shared")
    pairs = [(kind, kind.audit_options) for kind in kinds if kind.audit_options is not None and kind.head in wanted]
    return sorted(pairs, key=lambda pair: (pair[0].optimises, pair[0].name))


def _all(wanted: type[Kind]) -> dict[str, type[Kind]]:
    return {name: kind for name, kind in ATTACKS.all().items() if issubclass(kind, wanted)}


def _find(wanted: type[Kind], name: str) -> type[Kind]:
    kind = ATTACKS.find(name)
    if not issubclass(kind, wanted):
        raise KeyError(f"{name} is an attack on {kind.modality}s, not on {wanted.modality}s")
    return kind
