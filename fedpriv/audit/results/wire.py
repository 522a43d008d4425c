"""What was sent: tensors, bytes, statistics, what clients told before round 1, and how strong added noise was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """A tensor of the net or of a message.

    Attributes:
        role: the part of the net, or ``statistic``.
        dtype: as safetensors names it.
        up, down, broadcast: whether it was uploaded, downloaded, sent in round 0.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    up: bool
    down: bool
    broadcast: bool

    @property
    def was_sent(self) -> bool:
        """Whether it was ever sent, in either direction."""
        return self.up or self.down or self.broadcast


@dataclass(frozen=True)
class RoundTraffic:
    """Bytes of all messages of a round."""

    round: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Schema:
    """Messages of the same names, types and shapes."""

    hash: str
    tensors: int
    bytes: int
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Wire:
    """What was sent in the kept messages; ``facts``: what a message states besides tensors."""

    tensors: tuple[TensorInfo, ...] = ()
    facts: tuple[str, ...] = ()
    rounds: tuple[RoundTraffic, ...] = ()
    schemas: tuple[Schema, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToldBefore:
    """What a message of before round 1 says of training samples.

    Attributes:
        client: whose samples they are; ``None``: those of all clients together.
        column: of a table, or a channel; empty: all of the samples.
        bytes: of the message.
        rows: of a table, behind a client's statistics; 0: the line is of something else.
        cells: how many single cells of the column it tells. A number that is the label counts as a cell.
        alike: whether all of the rows have the same value in the column.
    """

    client: int | None
    column: str
    says: str
    bytes: int
    rows: int = 0
    cells: int = 0
    alike: bool = False


@dataclass(frozen=True)
class ToldRows:
    """What the statistics of before round 1 tell of a client's rows; ``client``: ``None``: of all clients' together.

    Attributes:
        cells: how many cells of its ``rows``, of so many ``columns``, they tell.
        unlike: number of the columns in which its rows differ.
    """

    client: int | None
    rows: int
    columns: int
    cells: int
    unlike: int

    @property
    def share(self) -> float:
        """The share of the cells that they tell."""
        return self.cells / (self.rows * self.columns)

    @property
    def whole(self) -> bool:
        """Whether they tell its rows in every cell: it has one row, or its rows differ in at most one column."""
        return self.cells == self.rows * self.columns and (self.rows == 1 or self.unlike <= 1)


def told_rows(lines: Iterable[ToldBefore]) -> list[ToldRows]:
    """The clients of whose rows the lines tell cells."""
    by_client = dict[int | None, list[ToldBefore]]()
    for line in lines:
        if line.rows and line.column:
            by_client.setdefault(line.client, []).append(line)
    every = [
        ToldRows(client, of[0].rows, len(of), sum(line.cells for line in of), sum(not line.alike for line in of))
        for client, of in by_client.items()
    ]
    return [rows for rows in every if rows.cells]


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A statistic that is sent besides the layers that give the logits.

    Attributes:
        tensors, bytes: in a message.
        says: what it reveals of a client.
        known: whether this audit knows what it is.
        gradient: whether it is a gradient, and is attacked as one.
        otherwise: how else it is attacked; empty: it is not.
    """

    what: str
    tensors: int
    bytes: int
    says: str
    known: bool
    gradient: bool
    otherwise: str

    @property
    def attacked(self) -> str:
        """How it is attacked, in words; empty: it is not."""
        return "as a gradient" if self.gradient else self.otherwise


@dataclass(frozen=True)
class SignalToNoise:
    """Signal-to-noise ratio in dB of a layer that noise was added to, over the rounds."""

    layer: str
    min: float
    median: float
    rounds: int
