"""Partition rules: their input and output, their registry, and common functions."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpriv.config import PartitionConfig
from fedpriv.errors import UsageError
from fedpriv.registry import Registry, instance_of

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

    from fedpriv.data.user_data.owners import Owners

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionTask:
    """The input of a partition rule: labels ``(N,)`` in ``0..classes-1``, the number of clients, the options and a random
    generator.

    Attributes:
        owners: the client of each sample; ``None``: the data do not say.
        seed: of ``rng``, for a rule with a generator of its own.
        names: of the classes, for messages; empty: they have none.
    """

    labels: Indices
    classes: int
    clients: int
    options: PartitionConfig
    rng: np.random.Generator
    owners: Owners | None = None
    seed: int = 0
    names: Sequence[str] = ()

    def named(self, cls: int) -> str:
        """A class as messages call it."""
        return repr(self.names[cls]) if self.names else str(cls)

    def pools(self) -> list[Indices]:
        """The shuffled sample indices of each class."""
        return [self.rng.permutation(np.flatnonzero(self.labels == c)) for c in range(self.classes)]


@dataclass(frozen=True)
class PartitionIndices:
    """Training indices per client; ``test`` only where the rule takes test images from the training split, too."""

    train: list[Indices]
    test: list[Indices] | None = None


PartitionRule: TypeAlias = Callable[[PartitionTask], PartitionIndices]


@dataclass(frozen=True)
class NamedPartition:
    """A partition by name.

    Attributes:
        uses: the options of :class:`PartitionConfig` that it uses.
        by_label: whether it assigns samples by their labels, which are then classes.
    """

    rule: PartitionRule
    uses: frozenset[str]
    by_label: bool = True

    @property
    def about(self) -> str:
        """What it does, in a line."""
        return (self.rule.__doc__ or "").partition("\n")[0]


REGISTRY: Registry[NamedPartition] = Registry(
    "partition",
    "fedpriv.partitions",
    [
        "fedpriv.data.partitions.by_class",
        "fedpriv.data.partitions.dirichlet",
        "fedpriv.data.partitions.lognormal",
        "fedpriv.data.user_data.owners",
    ],
    *instance_of(NamedPartition),
)
partitions = REGISTRY.all


def partition_rule(*names: str, uses: Sequence[str] = (), by_label: bool = True) -> Callable[[PartitionRule], PartitionRule]:
    """Register a partition rule under its names; the first line of its docstring is what ``fedpriv data list`` shows.

    A plug-in does the same and lists its module in the entry-point group ``fedpriv.partitions``.

    Args:
        uses: the options it reads.
        by_label: as of :class:`NamedPartition`.
    """

    def register(function: PartitionRule) -> PartitionRule:
        for name in names:
            REGISTRY.add(name, NamedPartition(function, frozenset({"name", "seed", "test", *uses}), by_label), function)
        return function

    return register


def share_by_counts(labels: NDArray[Any], counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Divide all samples disjointly, so that each class is shared in proportion to its column of ``counts`` ``(n, C)``.

    Shares differ from the exact proportion by at most one image. A class that no client holds is left out.
    """
    n, classes = counts.shape
    shares: list[list[Indices]] = [[] for _ in range(n)]
    for c in range(classes):
        if not counts[:, c].any():
            continue
        pool = rng.permutation(np.flatnonzero(labels == c))
        order = rng.permutation(n)  # drawn per class, so that rounding does not always favour the same clients
        bounds = np.floor(np.cumsum(counts[order, c]) / counts[:, c].sum() * len(pool) + 0.5).astype(int)
        for client, part in zip(order, np.split(pool, bounds[:-1]), strict=True):
            shares[client].append(part)
    return [join(parts) for parts in shares]


def partition_with_flower(partitioner: Partitioner, task: PartitionTask, **columns: Indices) -> list[Indices]:
    """Partition by a Flower partitioner. Samples are shuffled first, since Flower cuts a class in the order of its rows.

    Args:
        columns: further columns ``(N,)`` that it reads, besides ``label``.
    """
    from datasets import Dataset

    class Columns(Dataset):  # type: ignore[misc]
        """A data set whose columns are arrays: those of ``datasets`` are read row by row, 50,000 labels in seconds."""

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(slice(None))[key] if isinstance(key, str) else super().__getitem__(key)

    order = task.rng.permutation(len(task.labels))
    rows = {name: column[order] for name, column in {"label": task.labels, **columns}.items()}
    partitioner.dataset = Columns.from_dict({"index": order, **rows}).with_format("numpy")
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # the bars of some
        warnings.simplefilter("ignore")  # redraws, and a deprecation within pyarrow: nothing that a user could act on
        return [np.asarray(partitioner.load_partition(client)[:]["index"], dtype=np.int64) for client in range(task.clients)]


def flower_seed(task: PartitionTask) -> int:
    """A seed for a Flower partitioner, drawn from the task's own generator."""
    return int(task.rng.integers(2**31))


def at_least_one_each(task: PartitionTask) -> None:
    """Raise :class:`UsageError` if there are fewer training samples than clients."""
    if task.clients > len(task.labels):
        raise UsageError(f"{task.options.name}: {task.clients} clients, but only {len(task.labels)} training samples")


def join(parts: list[Indices]) -> Indices:
    """Concatenate; an empty array for an empty list."""
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
