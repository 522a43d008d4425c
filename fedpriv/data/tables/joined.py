"""Tables that are made of others: some rows of a table, and the rows of the clients' tables one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.tables.files import Table, array_types
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


@dataclass(frozen=True)
class Part:
    """Some rows ``(n,)`` of a table."""

    table: Table
    rows: NDArray[np.int64]

    @property
    def origin(self) -> str:
        return self.table.origin

    @property
    def files(self) -> tuple[Path, ...]:
        return self.table.files

    @property
    def features(self) -> datasets.Features:
        return self.table.features

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name).take(self.rows)

    def written(self, name: str) -> pa.ChunkedArray | None:
        values = self.table.written(name)
        return None if values is None else values.take(self.rows)

    def at(self, row: int) -> str:
        return self.table.at(int(self.rows[row]))


@dataclass(frozen=True)
class Joined:
    """The rows of the clients' tables, one client after the other."""

    names: tuple[str, ...]
    tables: tuple[Table, ...]
    origin: str

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file for table in self.tables for file in table.files)

    @cached_property
    def features(self) -> datasets.Features:
        import datasets

        first = self.tables[0].features
        for name, table in zip(self.names, self.tables, strict=True):
            if sorted(table.features) != sorted(first):
                raise UsageError(
                    f"{self.origin}: client {name} has the columns {', '.join(table.features)}, client {self.names[0]} "
                    f"{', '.join(first)}; they must be the same"
                )
            for column, kind in table.features.items():
                both = (kind, first[column])
                what = {datasets.ClassLabel: "other classes", **dict.fromkeys(array_types(), "arrays of other shapes or types")}
                if kind != first[column] and (
                    difference := next((what[type(side)] for side in both if type(side) in what), None)
                ):
                    raise UsageError(f"{self.origin}: clients {self.names[0]} and {name} have {difference} in column {column!r}")
        return first

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        parts = [pa.table({name: table.column(name)}) for table in self.tables]
        try:
            return pa.concat_tables(parts, promote_options="permissive").column(name)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise UsageError(f"column {name!r} has not the same type for all clients of {self.origin}") from None

    def written(self, name: str) -> pa.ChunkedArray | None:
        import pyarrow as pa

        parts = [part for table in self.tables if (part := table.written(name)) is not None]
        chunks = [chunk for part in parts for chunk in part.chunks]
        return pa.chunked_array(chunks, type=pa.string()) if len(parts) == len(self.tables) else None

    def at(self, row: int) -> str:
        owners = self.owners()
        client = int(owners[row])
        return self.tables[client].at(row - int(np.searchsorted(owners, client)))

    def owners(self) -> NDArray[np.int64]:
        """``(N,)`` the number of each row's client."""
        column = next(iter(self.features))
        return np.repeat(np.arange(len(self.tables)), [len(table.column(column)) for table in self.tables])
