"""Tables that are made of others: some rows of a table, and the rows of the clients' tables one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.tables.files import Table, array_types, called
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
            for there, lacking, holder, lacker in (
                (first, table.features, self.names[0], name),
                (table.features, first, name, self.names[0]),
            ):
                if absent := [column for column in there if column not in lacking]:
                    raise UsageError(
                        f"{self.origin}: client {lacker} lacks the column {absent[0]!r} of client {holder}; its columns are: "
                        f"{', '.join(lacking)}"
                    )
            for column, kind in table.features.items():
                both = (kind, first[column])
                what = {datasets.ClassLabel: "other classes", **dict.fromkeys(array_types(), "arrays of other shapes or types")}
                if kind != first[column] and (
                    difference := next((what[type(side)] for side in both if type(side) in what), None)
                ):
                    raise UsageError(
                        f"{self.origin}: clients {self.names[0]} and {name} have {difference} in {called(self, column)}"
                    )
        return first

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        parts = [pa.table({name: table.column(name)}) for table in self.tables]
        try:
            return pa.concat_tables(parts, promote_options="permissive").column(name)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise UsageError(f"{self.origin}: {self._difference(name)}") from None

    def _difference(self, name: str) -> str:
        """A line on a column that has not the same type for all clients."""
        import pyarrow.types as kinds

        columns = dict(zip(self.names, (table.column(name) for table in self.tables), strict=True))
        texts = {client: values for client, values in columns.items() if kinds.is_string(values.type)}
        numbers = [
            client for client, values in columns.items() if kinds.is_integer(values.type) or kinds.is_floating(values.type)
        ]
        if not texts or not numbers:
            types = ", ".join(f"{values.type} ({client})" for client, values in columns.items())
            return f"{called(self, name)} has not the same type for all clients: {types}"
        client, values = next(iter(texts.items()))
        odd = next((value for value in values.to_pylist() if value and not _is_number(value)), values[0].as_py())
        return (
            f"{called(self, name)} holds numbers at client {numbers[0]}, and texts such as {odd!r} at client {client}; leave a "
            "cell empty where a number is missing, or leave out the column (data.drop)"
        )

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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
