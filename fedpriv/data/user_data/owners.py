"""Clients that come with the data: which client each sample belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.config import DataConfig, RunConfig
from fedpriv.data.partition_rules import Indices, PartitionIndices, PartitionTask, partition_rule, partition_with_flower
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.data.tables.files import Table

GIVEN, BY_COLUMN = "given", "by_column"
NO_CLIENT = -1


@dataclass(frozen=True, eq=False)
class Owners:
    """The client of each sample.

    Attributes:
        names: of the clients, by number.
        train: ``(N,)`` the number of each training sample's client.
        test: ``(N_test,)`` the same of each test sample, -1 for one of no client; ``None``: no test sample has a client.
    """

    names: tuple[str, ...]
    train: Indices
    test: Indices | None = None

    @classmethod
    def of_values(cls, train: NDArray[Any], test: NDArray[Any] | None) -> Owners:
        """A client for each value of a column that training rows have, in sorted order."""
        names, numbers = np.unique(train, return_inverse=True)
        if test is not None:
            # A single text makes a column of texts in one CSV file, where the other file's column has numbers.
            same = (train.dtype.kind == "U") == (test.dtype.kind == "U")
            known, sought = (list(values.tolist() if same else map(_as_text, values.tolist())) for values in (names, test))
            place = {value: number for number, value in enumerate(known)}
            test = np.array([place.get(value, NO_CLIENT) for value in sought], dtype=np.int64)
        return cls(tuple(map(str, names)), numbers.astype(np.int64), test)

    def at(self, train: Indices, test: Indices) -> Owners:
        """The owners of the samples at some positions."""
        return Owners(self.names, self.train[train], None if self.test is None else self.test[test])

    def held(self, of: Indices) -> list[Indices]:
        """The positions of each client's samples in ``of``, which is ``train`` or ``test``."""
        return [np.flatnonzero(of == client).astype(np.int64) for client in range(len(self.names))]


def _as_text(value: Any) -> str:
    """A number, truth value or text, so that it is equal to what a CSV file would have been read as: 007 as 7, true as True."""
    text = str(value).strip().lower()
    return str(int(text)) if text.removeprefix("-").isdecimal() else text


def owners_of(data: DataConfig, owners: Owners | None) -> Owners | None:
    """The clients that the partition of a config takes from the data; ``None``: it divides the samples itself.

    Args:
        owners: the client of each sample, as far as the data say.

    Raises:
        UsageError: the partition needs clients that the data do not have.
    """
    name = data.partition.name
    if name not in (GIVEN, BY_COLUMN):
        return None
    if name == BY_COLUMN and data.partition.column is None:
        raise UsageError("partition by_column: which column? --set data.partition.column=NAME")
    if owners is None:
        raise UsageError(f"partition given: {data.name} holds no folder for each client, such as clients/<client>/<class>/*")
    return owners


def with_clients(config: RunConfig, owners: Owners | None) -> RunConfig:
    """The config with as many clients as the data have; unchanged where its partition divides the samples itself (``None``).

    Raises:
        UsageError: the config says another number.
    """
    if owners is None:
        return config
    clients = len(owners.names)
    if "clients" in config.data.model_fields_set and config.data.clients != clients:
        name = config.data.partition.name
        raise UsageError(
            f"data.clients {config.data.clients}: partition {name} finds {clients} clients in the data; leave it out"
        )
    return config.with_clients(clients)


@partition_rule(GIVEN, by_label=False)
def given(task: PartitionTask) -> PartitionIndices:
    """The clients that the data come with: a folder each (`clients/<client>/...`), or an object each in Python."""
    return PartitionIndices(_owners(task).held(_owners(task).train))


@partition_rule(BY_COLUMN, uses=["column"], by_label=False)
def by_column(task: PartitionTask) -> PartitionIndices:
    """A client for each value of a column (--column), such as a hospital, a user or a writer."""
    from flwr_datasets.partitioner import NaturalIdPartitioner

    return PartitionIndices(partition_with_flower(NaturalIdPartitioner("owner"), task, owner=_owners(task).train))


def _owners(task: PartitionTask) -> Owners:
    if task.owners is None:
        raise UsageError(f"partition {task.options.name} takes its clients from the data, and these have none")
    return task.owners


def column_values(values: Sequence[Any], rows: Indices, column: str, table: Table) -> NDArray[Any]:
    """The values of a column that names clients, as numbers or texts.

    Args:
        rows: ``(N,)`` their rows in the table, for messages.

    Raises:
        UsageError: a row has none, or they are neither whole numbers nor texts.
    """
    for row, value in zip(rows, values, strict=True):
        if value is None or value == "":
            raise UsageError(f"{table.at(row)}: column {column!r} is empty, so its client is not known")
    kinds = {type(value) for value in values}
    if not (kinds <= {int} or kinds <= {str} or kinds <= {bool}):
        shown = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UsageError(f"{table.origin}: column {column!r} holds {shown}; clients are told apart by whole numbers or texts")
    return np.array(values)
