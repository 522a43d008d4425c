"""The form of a record: a folder that a program in any language can write.

::

    record.json           what holds for all messages (:class:`Facts`)
    messages.jsonl        a line for each message (:class:`Line`), in the order in which they were sent
    messages/*.safetensors  the tensors of messages, a file each; its name is free, and several lines may name one file
    net.pt2               the net as a program of torch.export, if ``net`` says so
    truth/CLIENT.safetensors  the samples that a client trained on, and their ``labels (n,)``; never sent
    public.safetensors    the same of samples that are no client's

Samples are ``images (n, C, H, W)`` in [0, 1]; or, as the net takes them, ``rows (n, F)`` of a table, or token ids
``texts (n, L)``.

A program writes a message's file before its line, so that a record that was cut by a kill is whole up to its last line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, field
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

FACTS, LINES, MESSAGES, TRUTH, PUBLIC = "record.json", "messages.jsonl", "messages", "truth", "public.safetensors"
PROGRAM, TRANSFORMERS = "net.pt2", "transformers:"
SPENT = "fedpriv.spent"
"""Name under which a client that accounts for differential privacy keeps what it spent."""
Direction = Literal["down", "up"]
Kind = Literal["weights", "change", "gradient"]
Samples = Literal["images", "rows", "texts"]
T = TypeVar("T")
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Training:
    """What is known of the clients' local training; ``None``: it is not known.

    Attributes:
        optimizer: with the options that PyTorch has by default, besides those that are given here.
        local_epochs, local_steps: how long a client trains in a round; one of them.
        batch_size: ``None``: a step takes all samples of a client.
        loss: of a batch, its mean.
        augmented: whether samples are changed at random before a step.
    """

    optimizer: Literal["sgd", "adam", "adamw", "other"] = "sgd"
    lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    local_epochs: int | None = None
    local_steps: int | None = None
    batch_size: int | None = None
    loss: Literal["cross_entropy", "other"] = "cross_entropy"
    augmented: bool = False

    def __post_init__(self) -> None:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("local_epochs and local_steps: give one of them")
        for name in ("lr", "local_epochs", "local_steps", "batch_size"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} {value}: above 0")

    def unknown(self) -> tuple[str, ...]:
        """What to record so that the training can be done again; empty: it can be."""
        lacks = {
            "lr": self.lr is None,
            "local_epochs or local_steps": self.local_epochs is None and self.local_steps is None,
            "an optimizer of sgd, adam or adamw": self.optimizer == "other",
            "a loss of cross_entropy": self.loss == "other",
            "samples that are not augmented": self.augmented,
        }
        return tuple(what for what, lacking in lacks.items() if lacking)

    def steps(self, samples: int) -> int | None:
        """The steps of a client with so many samples; ``None``: not known."""
        if self.local_epochs is None:
            return self.local_steps
        return self.local_epochs * -(-samples // (self.batch_size or samples))


@dataclass(frozen=True, config=_STRICT)
class NumberColumn:
    """A column of numbers, each an entry ``(number - mean) / std`` of a row.

    Attributes:
        gaps: whether a second entry is 1 where the number is missing; the first is 0 there.
        low, high: the range of the numbers, where it is known.
    """

    name: str
    mean: float = 0.0
    std: float = 1.0
    gaps: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, config=_STRICT)
class CategoryColumn:
    """A column of categories, each one-hot.

    Attributes:
        levels: those with an entry of their own.
        other: whether there is a last entry for all other levels.
    """

    name: str
    levels: tuple[str, ...]
    other: bool = True


@dataclass(frozen=True, config=_STRICT)
class Facts:
    """What holds for all messages of a record.

    Attributes:
        net: ``package.module:Name`` of a class or function that returns the net, and its keyword ``arguments``; or
            ``transformers:NAME`` of a model's folder or hub name, with options of its config as ``arguments``; or ``net.pt2``, a
            program of ``torch.export`` in the record's folder; ``None``: an audit gets the net by ``--model``.
        columns: empty: the samples are no rows of a table.
        encoder: ``None``: they are no texts.
        framework: such as ``Flower 1.27``.

    The others are as for :func:`fedpriv.recorder.start.recording`.
    """

    name: str
    classes: int
    input_shape: tuple[int, ...]
    net: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    head: str | None = None
    training: Training = field(default_factory=Training)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    transforms: tuple[dict[str, Any], ...] | None = ()
    framework: str = ""
    columns: tuple[CategoryColumn | NumberColumn, ...] = ()
    encoder: str | None = None
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.net not in (None, PROGRAM) and not re.fullmatch(rf"{TRANSFORMERS}.+|[\w.]+:[\w.]+", str(self.net)):
            raise ValueError(f"net {self.net!r}: package.module:Name, {TRANSFORMERS}NAME or {PROGRAM}")
        if self.columns and self.encoder is not None:
            raise ValueError("columns and encoder: samples are rows of a table, or texts")
        if len(self.input_shape) != (3 if self.samples == "images" else 1):
            of = {"images": "an image, (C, H, W)", "rows": "a row, (F,)", "texts": "a text, (L,), its largest number of tokens"}
            raise ValueError(f"input_shape {self.input_shape}: that of {of[self.samples]}")
        width = sum(len(it.levels) + it.other if isinstance(it, CategoryColumn) else 1 + it.gaps for it in self.columns)
        if self.columns and (width,) != self.input_shape:
            raise ValueError(f"input_shape {self.input_shape}: the columns have {width} entries")

    @property
    def samples(self) -> Samples:
        """What the net takes."""
        return "rows" if self.columns else "images" if self.encoder is None else "texts"


@dataclass(frozen=True, config=_STRICT)
class Line:
    """A message.

    Attributes:
        round: from 1.
        client: its name, whatever the framework calls it; of a sum, a name of its own for each set of ``members``.
        direction: ``down``: to the client; ``up``: its answer.
        kind: what the tensors are: new weights, the change of the weights, or a gradient. Names that are whole numbers are
            positions in the net's ``state_dict``; those of what is sent besides the net begin with ``statistic.``.
        file: in the folder of the record.
        sha256: of the file (hex).
        num_examples: the samples that a client says it trained on.
        nbytes: what the transport carried; ``None``: not known.
        epsilon, delta: what the client has spent with this answer, where it accounts for differential privacy.
        members: whose answers were summed, where the server learns only their sum; the tensors are then the mean of what they
            sent, weighted by their samples, and ``num_examples`` is of all of them.
    """

    round: int
    client: str
    direction: Direction
    kind: Kind
    file: str
    sha256: str
    num_examples: int | None = None
    nbytes: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members) or (self.members and self.direction == "down"):
            raise ValueError(f"members {self.members}: different clients, of an answer")
        if self.round < 1:
            raise ValueError(f"round {self.round}: from 1")
        if not self.client.isprintable() or not self.client:
            raise ValueError(f"client {self.client!r}: a name of printable characters")
        if not re.fullmatch(rf"{MESSAGES}/[\w.-]+\.safetensors", self.file):
            raise ValueError(f"file {self.file!r}: {MESSAGES}/NAME.safetensors")


@dataclass(frozen=True, config=_STRICT)
class End:
    """The last line of a record whose writer could not go on, such as where the disk was full."""

    ended: str


@dataclass(frozen=True, config=_STRICT)
class Refusal:
    """A client that answered a round with an error, such as to keep within its budget of differential privacy."""

    round: int
    client: str
    refused: str


_FORMS = {form.__name__ for form in (Line, End, Refusal, CategoryColumn, NumberColumn)}
"""Which of several forms was tried; a reader of the error knows."""
_FACTS: TypeAdapter[Facts] = TypeAdapter(Facts)
_LINE: TypeAdapter[Line | End | Refusal] = TypeAdapter(Line | End | Refusal)


def to_text(values: Facts | Line | End | Refusal) -> str:
    """JSON on one line."""
    return json.dumps(asdict(values))


def facts_from(values: Any) -> Facts:
    """The facts of values by name.

    Raises:
        ValueError: in one line, what is wrong and where.
    """
    return _checked(lambda: _FACTS.validate_python(values))


def facts_of(text: str) -> Facts:
    """The inverse of :func:`to_text`.

    Raises:
        ValueError: in one line, what is wrong and where.
    """
    return _checked(lambda: _FACTS.validate_json(text))


def line_of(text: str) -> Line | End | Refusal:
    """As :func:`facts_of`, of a line."""
    return _checked(lambda: _LINE.validate_json(text))


def _checked(validate: Callable[[], T]) -> T:
    try:
        return validate()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in _FORMS)
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {message}" if where else message) from None
