"""The server's half of a method: how uploads become the next model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from fedpriv.aggregation.rows import Rows, UploadedRows
from fedpriv.interfaces import LocalUpdate, Part
from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import is_model

Memory = Mapping[str, Tensor]
"""The server's state between rounds besides the model, by name."""


@dataclass(frozen=True)
class Uploads:
    """The uploads of a round, all finite, as a matrix.

    Attributes:
        space: the layout of what was sent; a part of the net's where some of it stays with the clients or is masked.
        rows: ``(K, p)``, ordered by client; entries that a client did not send have the server's value.
        by_columns: the same for functions of :mod:`fedpriv.aggregation.columns`, which read it part by part. Of a round that is
            too large for a matrix ``rows`` is a tensor without numbers (on torch's device ``meta``), and this has them.
        previous: ``(p,)`` the server's model at the round's start.
        examples: the clients' numbers of training samples; 0 where they are not revealed.
        statistics: what each client sent besides the model, by full name.
        clients: their numbers.
        registered: number K_all of registered clients that hold training data; those of the round are among them.
        whole: the layout of the whole net; ``None``: all of it was sent.
        unsent: names of the net's tensors that are sent in other rounds, by clients who have data for them (of pairs, a branch).
    """

    space: ParameterSpace
    rows: Tensor
    previous: Tensor
    examples: Sequence[int]
    statistics: Sequence[Mapping[str, Tensor]]
    clients: Sequence[int]
    round: int
    registered: int
    whole: ParameterSpace | None = None
    large: UploadedRows | None = None
    unsent: frozenset[str] = frozenset()

    @property
    def by_columns(self) -> Rows:
        return self.rows if self.large is None else self.large

    def __len__(self) -> int:
        return len(self.rows)

    def restrict(self, row: Tensor) -> Tensor:
        """The part that was sent of a row of the whole net, such as a server momentum: ``(p_whole,)`` -> ``(p,)``."""
        whole = self.whole or self.space
        return self.space.pack(whole.unpack(row, self.space.names), row.new_empty(self.space.size))

    def expand(self, row: Tensor, into: Tensor) -> Tensor:
        """The inverse of :meth:`restrict`: a copy of ``into`` ``(p_whole,)`` with ``row`` ``(p,)`` in the part that was sent."""
        whole = self.whole or self.space
        return whole.pack(self.space.unpack(row), into.clone())


@dataclass(frozen=True)
class Merged:
    """The next model ``(p,)``, the next memory, and numbers for the round's record, by name."""

    row: Tensor
    memory: Memory = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)


class Aggregation(Part):
    """How the server merges; a subclass defines :meth:`merge`."""

    linear: ClassVar[bool] = False
    """Whether a sum over the clients (:meth:`addend`) is enough to merge. A class with a merge of its own says so itself."""
    single_upload_metrics: ClassVar[frozenset[str]] = frozenset()
    """Of a linear one, numbers of the round's record that take single uploads; without them, they are left out."""

    by_columns: ClassVar[bool] = False
    """Whether :meth:`merge` reads :attr:`Uploads.by_columns` alone: a round may be larger than memory. A class with a merge
    of its own says so itself."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("linear", "by_columns"):
            if "merge" in vars(cls) and name not in vars(cls):
                setattr(cls, name, False)

    def start(self, row: Tensor) -> dict[str, Tensor]:
        """The memory before the first round, given the initial model ``(p,)`` of the whole net."""
        return {}

    def server_statistics(self, memory: Memory) -> dict[str, Tensor]:
        """The tensors of a download besides the model, by full name."""
        return {}

    def extra_models(self, row: Tensor, memory: Memory) -> dict[str, Tensor]:
        """Global models ``(p,)`` that are tested besides the server's ``row``, by the name in ``global_accuracy_<name>``."""
        return {}

    def download_names(self, names: Sequence[str], memory: Memory, round: int) -> Sequence[str]:
        """Names of the shared tensors in this round's download."""
        return names

    def upload_names(self, names: Sequence[str], received: Mapping[str, Tensor], round: int) -> Sequence[str]:
        """On the client, names of the shared tensors that it uploads in this round, given what it received."""
        return names

    def set_start(self, update: LocalUpdate) -> None:
        """On the client, before either half's :meth:`begin`: put into ``update.row`` and ``update.start`` what it goes on from,
        other than the tensors that it received. By default, where :meth:`sent` leaves tensors out, these have their initial
        values, or what the client keeps."""

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """Weights ``(K,)`` of the clients, not normalised, in the mean that replaces tensors missing from an upload.

        They are those of :meth:`merge`, before any that follow from what was uploaded; by default all weigh the same.
        """
        return [1.0] * len(uploads)

    def weight(self, examples: int) -> float:
        """On the client, its weight in a sum, as :meth:`weigh` has it at the server."""
        return 1.0

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """On the client, what it adds to a sum over the clients, in float64, from its upload; by full name.

        By default the model's tensors times the weight, and statistics as they are.
        """
        return {name: tensor.double() * (weight if is_model(name) else 1) for name, tensor in upload.items()}

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        """The upload of which ``count`` copies, each of the same weight, merge as the uploads behind the sums do.

        Args:
            sums: of the clients' :meth:`addend`.
            weight: the sum of their weights.
            count: how many they are.
        """
        return {name: total / (weight if is_model(name) else count) for name, total in sums.items()}

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        """Merge at least one upload into the next model."""
        raise NotImplementedError
