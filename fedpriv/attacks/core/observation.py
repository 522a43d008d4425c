"""The attacker's input: the tensors that were sent, the net, and the knowledge that a threat model adds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.core.altered import UNALTERED, Altered
from fedpriv.attacks.core.columns import RowEncoding

Kind = Literal["gradient", "change"]
Top = Literal["unknown", "initial", "current"]
Download = Literal["honest", "altered"]


@dataclass(frozen=True)
class Schedule:
    """A client's local training: SGD with heavy-ball momentum and an L2 penalty on the weights.

    Attributes:
        steps: number of SGD steps; 1 with ``kind="gradient"``.
        batch_size: samples per step.
        no_momentum: names of the tensors that are updated without momentum.
    """

    lr: float
    steps: int = 1
    batch_size: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    weight_decay_bias: float = 0.0
    no_momentum: frozenset[str] = frozenset()

    def of(self, name: str) -> Schedule:
        """The schedule of one tensor."""
        return replace(self, momentum=0.0, no_momentum=frozenset()) if name in self.no_momentum else self

    def renamed(self, names: Mapping[str, str]) -> Schedule:
        """With the tensors' names replaced; those that ``names`` lacks are left out."""
        return replace(self, no_momentum=frozenset(names[name] for name in self.no_momentum if name in names))


@dataclass(frozen=True)
class Passes:
    """The batches of a client's training, each of which moved the running statistics of the net's BatchNorm layers.

    Attributes:
        number: of batches, at least 1.
        samples: per batch.
    """

    number: int = 1
    samples: int = 1


@dataclass(frozen=True)
class ThreatModel:
    """What the attacker knows besides the payload; printed with every result.

    The default is the honest-but-curious server: it follows the protocol and knows the architecture, the weights it sent, the
    number of samples and the schedule.

    Attributes:
        top: what it knows of the layers that are not shared: nothing, the weights that were broadcast in round 0, or the present
            weights (an oracle: no attacker has them in practice).
        labels: whether it knows the labels (an oracle, for calibration).
        num_examples: whether it knows the number of samples behind a message.
        schedule: whether it knows learning rate, momentum, weight decay and the number of local steps.
        download: ``altered`` where a malicious server altered the weights that it sent.
        public: whether it has public images, or rows, of the same kind, with labels; none of them is the client's.
    """

    top: Top = "unknown"
    labels: bool = False
    num_examples: bool = True
    schedule: bool = True
    download: Download = "honest"
    public: bool = False

    def sentences(self, samples: Literal["images", "texts", "rows"] = "images") -> list[str]:
        """The threat model in sentences.

        Args:
            samples: images are normalised, and the cells of rows are encoded.
        """
        tops = {
            "unknown": "does not know the layers that are not shared",
            "initial": "knows the initial weights of the layers that are not shared (they were broadcast)",
            "current": "knows the present weights of the layers that are not shared (an oracle)",
        }
        others = {
            "labels": ("is given the labels (an oracle)", "is not given the labels"),
            "num_examples": ("knows the number of samples", "does not know the number of samples"),
            "schedule": ("knows the client's schedule", "does not know the client's schedule"),
        }
        rest = [yes if getattr(self, name) else no for name, (yes, no) in others.items()]
        sees = "sees the payload, the architecture and the weights that were sent to the client"
        given = {
            "images": ["is given the means and standard deviations by which images are normalised"],
            "texts": [],
            "rows": ["is given the means, standard deviations and levels by which columns are encoded"],
        }[samples]
        malice = ["is malicious: it altered the weights that it sent to the client"] if self.download == "altered" else []
        has = [f"has public {samples} of the same kind, with labels"] if self.public else []
        return [*malice, sees, *given, tops[self.top], *rest, *has]


class SplitNet(nn.Module):
    """A classifier cut where sharing ends: ``logits = top(body(x))``.

    ``body`` maps ``(B, C, H, W)`` to features ``(B, d)``, ``top`` maps those to logits ``(B, classes)``. Where a mask hides
    layers, ``top`` is exactly what is hidden; where nothing is hidden, ``top`` is the last linear layer.
    """

    def __init__(self, body: nn.Module, top: nn.Module) -> None:
        super().__init__()
        self.body, self.top = body, top

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` -> logits ``(B, classes)``."""
        logits: Tensor = self.top(self.body(x))
        return logits


Architecture = TypeVar("Architecture", bound=nn.Module)


@torch.no_grad()
def blank(net: Architecture) -> Architecture:
    """A copy of the net with NaN in all parameters and state buffers: only the architecture is left.

    The values that the attacker knows are in :attr:`Observation.weights`. An attack that uses any other value gets NaN images, so
    its result cannot depend on knowledge that it does not have.
    """
    empty = copied(net)
    state = empty.state_dict(keep_vars=True)
    for name in state_names(empty):
        state[name].fill_(torch.nan)
    return empty


def copied(net: Architecture) -> Architecture:
    """A deep copy of a net.

    Tensors that the net computed and keeps, such as an activation (``self.h = ...``) or the weight of
    ``torch.nn.utils.weight_norm``, are copied without their gradient history, as torch requires.
    """
    computed = [tensor for module in net.modules() for tensor in _tensors(vars(module)) if not tensor.is_leaf]
    return copy.deepcopy(net, {id(tensor): tensor.detach().clone() for tensor in computed})


def _tensors(kept: object) -> Iterator[Tensor]:
    if isinstance(kept, Tensor):
        yield kept
    elif isinstance(kept, Mapping | list | tuple):
        for value in kept.values() if isinstance(kept, Mapping) else kept:
            yield from _tensors(value)


def in_clients_mode(net: Architecture) -> Architecture:
    """A copy that computes as the client's net did in training, but without dropout.

    BatchNorm in training mode normalises by the batch; its running statistics stay as they are.
    """
    copy_of_net = copied(net)
    by_batch = batch_norms(copy_of_net)
    copy_of_net.eval()
    for module in by_batch:
        module.train()
        module.track_running_stats = False
    return copy_of_net


def batch_norms(net: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers that normalise by the batch, as they are in training mode."""
    return [module for module in net.modules() if isinstance(module, _BatchNorm) and module.training]


def state_names(net: nn.Module) -> list[str]:
    """Names of the net's parameters and floating-point buffers, such as running means; of tied ones the first name."""
    first: dict[int, str] = {}
    for name, tensor in net.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            first.setdefault(id(tensor), name)
    return list(first.values())


@dataclass(frozen=True)
class TextFacts:
    """What an attacker knows of a text encoder, whose architecture and tokeniser are public.

    ``net`` takes token ids ``(B, L)`` int64, padded at the end with ``pad``, and masks the padding itself.

    Attributes:
        words: parameter name of the word embedding's weight ``(V, d)``.
        positions: parameter name of the position embedding ``(length, d)``; ``None`` where there is none.
        special: ids that every sentence has, in order. Scores leave them out.
        length: the largest number of tokens that the encoder takes.
        opens: how many of the special ids come before the words; the others come after them.
        unknown: the id for words that the vocabulary lacks; ``None`` where there is none.
    """

    words: str
    positions: str | None
    pad: int
    special: tuple[int, ...]
    length: int
    opens: int = 1
    unknown: int | None = None

    @property
    def opening(self) -> tuple[int, ...]:
        """The ids with which every sentence begins; none in T5's, for example."""
        return self.special[: self.opens]

    @property
    def closing(self) -> tuple[int, ...]:
        """The ids with which every sentence ends; none in Gemma's, for example."""
        return self.special[self.opens :]

    @property
    def no_words(self) -> list[int]:
        """The ids that stand for no word."""
        return [self.pad, *self.special, *([] if self.unknown is None else [self.unknown])]

    @property
    def last(self) -> int | None:
        """The id at the end of every sentence; ``None`` where there is none."""
        return self.closing[-1] if self.closing else None


@dataclass(frozen=True)
class Public:
    """Public samples of the same kind as the client's, none of which is the client's.

    Attributes:
        images: ``(m, C, H, W)`` in [0, 1]; of a table, rows ``(m, F)`` as the net takes them.
        labels: ``(m,)``, of the client's classes, or numbers.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Observation:
    """One message of one client, as an attacker sees it. Attacks get nothing else: no image or label of the client.

    Attributes:
        shared: by parameter name of ``net`` (``body.…``, ``top.…``): the gradient of the mean loss over the client's samples, or
            the change of the weights (after minus before). Masked tensors are absent.
        weights: the weights that the client began with, by the same names; those of ``top`` as far as the threat model allows.
        net: the architecture, with NaN for every parameter (:func:`blank`); BatchNorm is in training mode where the client
            normalised by the batch (:func:`in_clients_mode`).
        input_shape: ``(C, H, W)`` of one sample; of text ``(L,)``, the maximum number of tokens; of a table's rows ``(F,)``.
        mean, std: per channel, of the client's normalisation: ``net`` gets ``(image - mean) / std`` for an image in [0, 1].
        num_examples: number of samples behind the message; ``None`` where the attacker does not know it.
        schedule: ``None`` where the attacker does not know it.
        labels: ``(n,)``; ``None`` unless the threat model gives them.
        statistics: what else was sent (class centres, counts), by name.
        text: of nets that read text.
        encoding: of nets that read rows of a table: what the entries of a row are, as server and clients agreed.
        loss: the client's loss in words; ``None`` for a cross-entropy on labels (further terms do not matter), or for the squared
            error of numbers.
        numbers: whether labels are numbers instead of classes; the net predicts one number.
        altered: the effect of the message's transforms on ``shared``; every attack takes it into account.
        public: given only if the threat model allows it and there are any; else ``None``.
        control_differences: clauses on how the message differs from those of all attacks' controls; a failure is then no
            evidence.
        zero_gradient_change: a tensor's first weights -> what all steps together do to weights whose gradients are zero; for
            any optimiser, also one that no schedule describes. ``None`` where the attacker does not know the optimiser.
        penalty: a tensor's first weights -> the part of its change that weight decay causes, whatever the gradients are; only for
            optimisers whose steps are linear in the gradients, such as SGD with clipped gradients.
        buffers: the net's buffers as the client sent them, such as running means, by the names of ``net``; :attr:`weights` has
            them as the client got them.
        passes: of the client's training; ``None`` where the attacker does not know them.
    """

    shared: Mapping[str, Tensor]
    kind: Kind
    weights: Mapping[str, Tensor]
    net: SplitNet
    input_shape: tuple[int, ...]
    classes: int
    threat: ThreatModel
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    num_examples: int | None = 1
    schedule: Schedule | None = None
    labels: Tensor | None = None
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    text: TextFacts | None = None
    encoding: RowEncoding | None = None
    loss: str | None = None
    numbers: bool = False
    altered: Altered = UNALTERED
    public: Public | None = None
    control_differences: tuple[str, ...] = ()
    zero_gradient_change: Callable[[Tensor], Tensor] | None = None
    penalty: Callable[[Tensor], Tensor] | None = None
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    passes: Passes | None = None
