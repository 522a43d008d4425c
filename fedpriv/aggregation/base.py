"""The server part of a method: how uploads become the next model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from fedpriv.aggregation.rows import Rows, UploadedRows
from fedpriv.interfaces import LocalUpdate, Part
from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import is_model

Memory = Mapping[str, Tensor]
"""The server's state between rounds, without the model, by name."""


@dataclass(frozen=True)
class Uploads:
    """The uploads of a round as a matrix with one row for each client; all entries are finite.

    Attributes:
        space: the layout of a row: the tensors that clients send, without private and masked ones.
        rows: ``(K, p)``, ordered by client. If only some uploads hold a tensor, the other rows get the weighted mean of those
            that do (before that, in :meth:`Aggregation.weigh`, they have the server's values). The mean over all rows is then
            the mean over the holders.
        by_columns: ``rows`` for the functions of :mod:`fedpriv.aggregation.columns`, which read some columns at a time. In a
            round too large for memory, only this can be read: ``rows`` is then a tensor without values (on torch's ``meta``).
        previous: ``(p,)``: the server's model at the start of the round.
        examples: ``(K,)``: the clients' numbers of training samples; 0 where they are not revealed.
        statistics: what each client sent besides the model, by full name.
        clients: the clients' numbers.
        registered: number of registered clients that hold training data, in this round or not.
        whole: the layout of the whole net; ``None``: it is ``space``.
        unsent: names of tensors that no client of this round has data for, but others have (a branch of a net of pairs).
        senders: the names of the tensors that each client sent; ``None``: each sent all of ``space``.
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
    senders: Sequence[Collection[str]] | None = None

    @property
    def by_columns(self) -> Rows:
        return self.rows if self.large is None else self.large

    def __len__(self) -> int:
        return len(self.rows)

    def restrict(self, row: Tensor) -> Tensor:
        """The entries of the sent tensors in a row of the whole net, such as a momentum: ``(p_whole,)`` -> ``(p,)``."""
        whole = self.whole or self.space
        return self.space.pack(whole.unpack(row, self.space.names), row.new_empty(self.space.size))

    def expand(self, row: Tensor, into: Tensor) -> Tensor:
        """The inverse of :meth:`restrict`: a copy of ``into`` ``(p_whole,)`` whose sent tensors are those of ``row`` ``(p,)``."""
        whole = self.whole or self.space
        return whole.pack(self.space.unpack(row), into.clone())


@dataclass(frozen=True)
class Merged:
    """The next model ``(p,)``, the next memory, and metrics for the round's record."""

    row: Tensor
    memory: Memory = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)


class Aggregation(Part):
    """How the server merges uploads; a subclass defines at least :meth:`merge`."""

    linear: ClassVar[bool] = False
    """Whether a sum over the clients (:meth:`addend`) is enough to merge, so that secure aggregation can be used. A class that
    overrides :meth:`merge` must declare it anew."""
    single_upload_metrics: ClassVar[frozenset[str]] = frozenset()
    """Metrics of a linear aggregation that depend on single uploads; under secure aggregation they are left out."""
    by_columns: ClassVar[bool] = False
    """Whether :meth:`merge` reads only :attr:`Uploads.by_columns`, so that a round may exceed memory. A class that overrides
    :meth:`merge` must declare it anew."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("linear", "by_columns"):
            if "merge" in vars(cls) and name not in vars(cls):
                setattr(cls, name, False)

    def start(self, row: Tensor) -> dict[str, Tensor]:
        """The memory before the first round, given the initial model of the whole net ``(p,)``."""
        return {}

    def server_statistics(self, memory: Memory) -> dict[str, Tensor]:
        """What a download contains besides the model, by full name."""
        return {}

    def extra_models(self, row: Tensor, memory: Memory) -> dict[str, Tensor]:
        """Further global models ``(p,)`` to test besides ``row``: name -> model; the metric is ``global_accuracy_<name>``."""
        return {}

    def download_names(self, names: Sequence[str], memory: Memory, round: int) -> Sequence[str]:
        """The shared tensors that this round's download contains; by default all."""
        return names

    def upload_names(self, names: Sequence[str], received: Mapping[str, Tensor], round: int) -> Sequence[str]:
        """The shared tensors that a client uploads in this round; by default all. Called on the client."""
        return names

    def set_start(self, update: LocalUpdate) -> None:
        """Write the client's starting weights into ``update.row`` and ``update.start``, if these differ from the download's.

        Called on the client, before :meth:`begin` of both parts. Tensors that :meth:`download_names` leaves out have the
        client's private values, or else the initial ones.
        """

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' weights ``(K,)``, not normalised, before any that depend on the uploads; by default equal.

        Also used for the mean that stands in for tensors missing from an upload (:mod:`fedpriv.aggregation.completing`).
        """
        return [1.0] * len(uploads)

    def weight_in_sum(self, examples: int) -> float:
        """The weight of one client in a secure sum, equal to that of :meth:`weigh`. Called on the client."""
        return 1.0

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """What a client adds to the sum over the clients, in float64, by full name. Called on the client.

        By default its model times its weight, and its statistics unweighted.
        """
        return {name: tensor.double() * (weight if is_model(name) else 1) for name, tensor in upload.items()}

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        """A stand-in upload: merging ``count`` equally weighted copies gives the same model as merging the clients' uploads.

        Args:
            sums: the sums of the clients' :meth:`addend`.
            weight: the sum of the clients' weights.
            count: number of clients.
        """
        return {name: total / (weight if is_model(name) else count) for name, total in sums.items()}

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        """Merge at least one upload into the next model."""
        raise NotImplementedError
