"""What an audit reads: the base class of its sources, and the messages that they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.attacks.core.altered import UNALTERED, Altered
from fedpriv.attacks.core.columns import RowEncoding
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.labels import Samples
from fedpriv.audit.results.audit import Part
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.results.wire import Statistic
from fedpriv.data.federated import Split
from fedpriv.models.text.pretrained import Encoder
from fedpriv.samples import Modality
from fedpriv.wire.coding import is_model

if TYPE_CHECKING:
    from fedpriv.audit.membership.rounds import InRounds
    from fedpriv.audit.progress import Progress
    from fedpriv.audit.run_audit import AuditOptions

PublicImages = tuple[Tensor, Tensor] | tuple[None, None]
"""Images ``(m, C, H, W)`` in [0, 1] and their labels ``(m,)``, or none."""
DataOf = Callable[[int], Split]
"""A simulated client's number -> its training data. May be called more than once for a client."""
NUMBERS = Reason("does not apply", "labels are numbers, and no classes")
SIMULATED: tuple[Part, ...] = ("membership", "shadow clients", "class centres", "single samples")
"""The parts of an audit that simulate clients."""


@dataclass(frozen=True)
class Message:
    """What a client was sent in a round, and what it sent back.

    Attributes:
        received: the tensors that the client was sent, by the net's names.
        uploaded: the tensors that it sent back, compressed changes decoded into weights.
        num_examples: its number of samples as the message states it.
        altered: the effect of the transforms on the change, by the net's names.
        parts: how many clients it is the mean of.
        first_update: whether the client is known to have had no earlier local update; true of all simulated clients.
    """

    round: int
    client: int
    received: Mapping[str, Tensor]
    uploaded: Mapping[str, Tensor]
    num_examples: int | None
    altered: Altered = UNALTERED
    parts: int = 1
    first_update: bool = False

    @property
    def of_model(self) -> list[str]:
        """Names of the tensors of the model that it sent back."""
        return [name for name in self.uploaded if is_model(name)]

    def simulated(self, uploaded: Mapping[str, Tensor]) -> Message:
        """The message with this upload in place of its own; the message itself if it is its own upload."""
        return self if uploaded is self.uploaded else replace(self, uploaded=uploaded, first_update=True)


@dataclass(frozen=True)
class Truth:
    """The training data behind a message: images ``(n, C, H, W)`` in [0, 1], labels ``(n,)``. Attacks never get it."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Alone:
    """The messages of simulated clients that hold one sample each.

    Attributes:
        samples: of each, whose it is, and its place among that client's.
        views: their images and the augmented views of their local updates ``(n, V, C, H, W)``; ``None``: they do not augment.
    """

    messages: Sequence[Message]
    samples: Sequence[tuple[int, int]]
    views: Tensor | None = None


@dataclass(frozen=True)
class RegressionInputs:
    """What a regression of a message on gradients gets besides samples.

    Attributes:
        messages: the message, and as a control that of the server's own update.
        path: see :func:`fedpriv.attacks.inference.gradient_regression.gradient_regression`; ``clip``: see there.
    """

    messages: tuple[Observation, Observation]
    path: list[dict[str, Tensor]]
    clip: float | None


@dataclass(frozen=True)
class PlainChange:
    """The changes of the parameters that are sent in both directions, by the net's names, as plain steps would have made them.

    Attributes:
        open: why a correction may still be in them; ``None``: there is none.
        uncorrected: whether the whole correction is still in them.
    """

    of: Mapping[str, Tensor]
    open: str | None = None
    uncorrected: bool = False


class Record:
    """The messages that an audit reads, what attackers see of them, and the truth to score attacks against.

    A subclass says where they come from: the folder of a run, or one update of any training loop. A message is named by its round
    and the number of its sender.

    Attributes:
        name: on the page, and in the names of pictures.
        modalities: the kinds of the samples; empty for rows of a table.
        classes: the number of classes, or of the net's outputs.
        numbers: whether labels are numbers, and no classes.
        input_shape: the shape of an image ``(C, H, W)``.
        seed: the seed of controls on the attacked net.
        encoder: the encoder of texts; ``None``: there are no texts.
        encoding: of the columns of a table; ``None``: the samples are no rows of a table.
        summed: whether a message is the sum of several clients' uploads.
        declared: whether steps and samples are only the caller's claim; a message that does not fit may come from other samples.
        delta: at which lower bounds of epsilon are given.
        cannot_simulate: why the record's clients cannot be simulated; ``None``: they can.
    """

    name: str
    modalities: tuple[Modality, ...]
    classes: int
    numbers: bool = False
    input_shape: tuple[int, ...]
    seed: int
    encoder: Encoder | None = None
    encoding: RowEncoding | None = None
    summed: bool = False
    declared: bool = False
    delta: float = 1e-5
    cannot_simulate: Reason | None = Reason("not available", "it needs a run, whose clients can be simulated")

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        """The (round, client) pairs of all messages, ascending; with arguments, of the matching ones."""
        raise NotImplementedError

    def message(self, round: int, client: int) -> Message:
        """One message."""
        raise NotImplementedError

    def rounds(self) -> list[int]:
        """The rounds of the messages, ascending."""
        return list(dict.fromkeys(round for round, _ in self.messages()))

    def clients(self, round: int) -> list[int]:
        """The senders of a round's messages, ascending."""
        return [client for _, client in self.messages(round)]

    def whole_clients(self, round: int) -> list[int]:
        """The clients with a message of that round and complete samples; for pairs, with both images and texts."""
        return self.clients(round)

    def behind(self, round: int, client: int) -> list[int]:
        """The clients whose local updates are behind a message."""
        return [client]

    def sender(self, round: int, client: int) -> Sender:
        """Whose message it is: a client's, or a secure sum of several clients'."""
        return self.one_client(client)

    def one_client(self, client: int) -> Sender:
        """A client, by its name where it has one."""
        return Sender(client)

    def title(self, round: int, client: int, samples: str, steps: int | None = None) -> str:
        """A message in tables: its sender, its samples, and how many local steps it took."""
        return f"round {round}, {self.sender(round, client).named}: {samples}" + (f", {steps} local steps" if steps else "")

    def picture(self, kind: str, round: int, sender: Sender) -> str:
        """The file name of a picture of reconstructions."""
        whose = re.sub(r"\W+", "-", sender.named).strip("-")
        return f"{self.name}-{kind.replace(' ', '-')}-round-{round}-{whose}.png"

    def observation(self, message: Message, threat: ThreatModel, what: str = "") -> Observation:
        """The model's change, or the statistic ``what`` of :meth:`gradients`, as an attacker under that threat model sees it.

        Raises:
            UsageError: it cannot be read, or the threat model grants what was never sent.
        """
        raise NotImplementedError

    def gradients(self, message: Message) -> Sequence[str]:
        """The statistics of a message that can be attacked as gradients."""
        return ()

    def steps_behind(self, message: Message, what: str) -> Schedule | None:
        """The steps, if the statistic is the mean of their gradients; ``None``: it is the gradient of one step, or they are
        unknown."""
        return None

    def started(self, message: Message, what: str = "") -> Mapping[str, Tensor] | None:
        """The weights at which the client began, by the names of :meth:`observation`, hidden ones too; ``None``: not kept."""
        raise NotImplementedError

    def plain_change(self, message: Message) -> PlainChange:
        """The model's change without what the method added to the client's gradients."""
        raise NotImplementedError

    def trained_apart(self, message: Message) -> bool:
        """Whether layers that were never sent may have been trained before those that were."""
        return False

    def truth(self, client: int) -> Truth:
        """The client's training images, without augmentation."""
        raise NotImplementedError

    def views(self, round: int, client: int, images: Tensor) -> Tensor | None:
        """The client's images and the augmented views of its local update ``(n, V, C, H, W)``; ``None``: it does not augment."""
        return None

    def labels(self, client: int) -> Tensor:
        """The labels of the client's training data ``(n,)``."""
        raise NotImplementedError

    def label_sets(self, clients: Sequence[int]) -> Tensor:
        """Which classes clients hold, ``(n, C)`` bool."""
        return torch.stack([torch.bincount(self.labels(client), minlength=self.classes) > 0 for client in clients])

    def told_classes(self, client: int) -> Tensor | None:
        """How many samples of each class ``(C,)`` a client told the server that it holds, before round 1; ``None``: it told none,
        or messages are sums."""
        return None

    def holders(self) -> Sequence[int]:
        """All clients that are known to hold samples."""
        raise NotImplementedError

    def set_guess(self, true: Tensor) -> float | None:
        """The share of clients whose set of classes is found by naming one set for all; ``None``: it is not known.

        Args:
            true: the number of the client's samples by class ``(C,)``.
        """
        raise NotImplementedError

    def texts(self, client: int) -> Tensor:
        """Token ids ``(n, L)`` of the client's training data, truncated as in training."""
        raise NotImplementedError

    def rows(self, client: int) -> Tensor:
        """The rows of the client's training data as the net takes them ``(n, F)``."""
        raise NotImplementedError

    def lacking(self, client: int) -> Modality | None:
        """The modality of image-text pairs that the client lacks; ``None``: it has both, or the record is not of pairs."""
        return None

    def public_images(self) -> PublicImages:
        """Images of the same kind that are no client's."""
        return None, None

    def public_texts(self) -> Tensor:
        """Token ids ``(m, L)`` of texts of the same kind that are no client's."""
        raise NotImplementedError

    def public_rows(self) -> Tensor:
        """Rows of the same table as the net takes them ``(m, F)``, that are no client's."""
        raise NotImplementedError

    def public_samples(self) -> Samples | None:
        """Public samples as inputs of the net, some of each class, for rules that infer labels; ``None``: there are none."""
        return None

    def statistics(self) -> tuple[Statistic, ...]:
        """What was sent besides the layers that give the logits."""
        return ()

    def alone(self, round: int, client: int, count: int) -> Alone:
        """The messages of at most ``count`` simulated clients with a sample each, this client's first, then those of others.

        Raises:
            UsageError: the loss is not defined for a single sample.
            NotSimulated: such clients cannot be simulated in this round.
        """
        raise NotImplementedError

    def shadows(self, round: int, client: int, data: DataOf, numbers: Sequence[int]) -> Iterator[Message | None]:
        """The messages of simulated clients with these numbers in place of a client's, in this order; ``None``: it diverged."""
        raise NotImplementedError

    def regression(self, message: Message, samples: Split) -> RegressionInputs:
        """What a regression of a message on gradients gets; the server's own update is one with these samples.

        Raises:
            FedprivError: that update diverged, or cannot be computed.
        """
        raise NotImplementedError

    def samples_behind(self, message: Message) -> int:
        """How many samples a client in the place of the message's has."""
        raise NotImplementedError

    def server_labels(self) -> Tensor:
        """The labels of samples of the server's own ``(m,)``."""
        raise NotImplementedError

    def server_samples(self, index: Tensor) -> Split:
        """The server's own samples at these positions, as the net takes them."""
        raise NotImplementedError

    def parameters(self) -> Sequence[str]:
        """The names of the net's parameters, in their order."""
        raise NotImplementedError

    def members(self, options: AuditOptions, rounds: Sequence[int], progress: Progress) -> InRounds | None:
        """Membership inference in the last round and in other ones; ``None``: it is not possible."""
        return None

    def in_own_names(self, text: str) -> str:
        """A text about the net that attackers see, with the names of layers that its user knows."""
        return text

    def not_run(self) -> dict[Part, Reason]:
        """The parts of an audit that are left out as the record does not allow them, and why."""
        of_classes: dict[Part, Reason] = dict.fromkeys(("classes", "shadow clients"), NUMBERS) if self.numbers else {}
        return of_classes | ({} if self.cannot_simulate is None else dict.fromkeys(SIMULATED, self.cannot_simulate))
