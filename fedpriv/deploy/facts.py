"""What clients declare before the first round, and what server and clients know of their data from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedpriv.agreement import Declared
from fedpriv.config import parse
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.errors import UsageError
from fedpriv.samples import Modality
from fedpriv.simulation.inputs.unseen import SampleForm

HANDSHAKE = "handshake"
"""The name of the run in frames that are sent before there is one."""


@dataclass(frozen=True)
class Facts:
    """All that a client declares about itself and its data.

    Attributes:
        code: its fedpriv (:func:`code_version`).
        time: the client's clock, in seconds since 1970.
        train, test: numbers of samples.
        lacks: the modality that is missing, if the samples are incomplete image-text pairs.
        default_model, suggests: what the data set suggests for config keys that are not set.
        partition: hash of the partition that the client takes its share of; ``None``: its data are its own.
        unscaled: what is to be known of its samples before they can be scaled and coded; ``None``: it is known.
        covered: what its file requires for its training data, which does not cover fine-tuning before tests.
    """

    client: int
    code: str
    time: float
    form: SampleForm
    classes: tuple[str, ...]
    train: int
    test: int
    default_model: str
    lacks: Modality | None = None
    suggests: Mapping[str, Any] = field(default_factory=dict)
    partition: str | None = None
    unscaled: SampleKind | None = None
    covered: Literal["epsilon", "secure aggregation"] | None = None

    @property
    def samples(self) -> dict[str, int]:
        """Numbers of training and test samples."""
        return {"train": self.train, "test": self.test}

    @classmethod
    def parse(cls, values: Any, client: int) -> Facts:
        """Read a client's declaration from JSON; :class:`UsageError` if it is invalid."""
        return parse(cls, values, f"what client {client} declares")


def class_names(facts: Sequence[Facts]) -> tuple[str, ...]:
    """The classes of all clients: those of the client that has most. Of tables, others may lack some."""
    return max((client.classes for client in facts), key=len)


def training_sizes(facts: Sequence[Facts]) -> dict[int, int]:
    """Client -> number of training samples, of the clients that have any."""
    return {client.client: client.train for client in facts if client.train}


def declared(facts: Sequence[Facts]) -> Declared:
    """What the server knows about the clients' data."""
    sizes = training_sizes(facts)
    lacks = {client.client: client.lacks for client in facts if client.lacks is not None}
    mean, most, names = sum(sizes.values()) / len(sizes), max(sizes.values()), class_names(facts)
    return Declared(len(names), sorted(sizes), mean, most, lacks, class_names=names)


def declared_to_json(known: Declared) -> dict[str, Any]:
    """A declaration for the clients, as JSON values."""
    lacks = [[client, modality] for client, modality in sorted(known.lacks.items())]
    return asdict(known) | {"trainable": list(known.trainable), "lacks": lacks}


def declared_from_json(values: Any) -> Declared:
    """The inverse of :func:`declared_to_json`; :class:`UsageError` if the values are invalid."""
    lacks = values.get("lacks") if isinstance(values, dict) else None
    if not isinstance(lacks, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in lacks):
        raise UsageError("what the server declares: no list of who lacks what")
    return parse(Declared, {**values, "lacks": dict(lacks)}, "what the server declares")


@dataclass(frozen=True)
class DisjointClients:
    """A partition whose samples are unknown: no sample is assumed to be at two clients.

    Attributes:
        sizes: client -> number of training samples.
    """

    sizes: Mapping[int, int]

    def holders(self) -> list[tuple[int, ...]]:
        """Groups of clients that hold a common sample: each client alone."""
        return [(client,) for client in sorted(self.sizes)]

    def distinct(self) -> int:
        """Number of different samples."""
        return sum(self.sizes.values())
