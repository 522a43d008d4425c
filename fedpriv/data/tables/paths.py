"""Columns of a table that name files: images are read by these names, relative to the table's own folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.data.tables.columns import IMAGE_COLUMNS, choose, holds_bytes, is_string
from fedpriv.data.tables.file_names import FIRST, file_names, is_image_name
from fedpriv.data.tables.files import Table
from fedpriv.data.tables.joined import Joined, Part
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


def resolved(values: Sequence[object], folder: Path, at: Callable[[int], str]) -> list[str]:
    """The paths of images that a column names, which may be absolute, or lead out of the folder: they are the user's own files.

    Args:
        at: the place of a row, for messages.

    Raises:
        UsageError: a name is missing, is no image's, or there is no such file.
    """
    paths = []
    for row, value in enumerate(values):
        name = str(value or "").strip()
        path = os.path.normpath(folder / name)
        if not name:
            raise UsageError(f"{at(row)} is empty, where others name images; remove the row")
        if "://" in name:
            raise UsageError(f"{at(row)} is the address {name!r}; download the images, and name the files")
        if not is_image_name(name):
            raise UsageError(f"{at(row)} is {name!r}, which is no image by its suffix; others are")
        if not os.path.isfile(path):
            raise UsageError(f"{at(row)} names {name!r}, and there is no file {path}")
        paths.append(path)
    return paths


@dataclass(frozen=True)
class ImagesByPath:
    """A table with a column that names images, read as one whose column holds them.

    Attributes:
        name: of the column.
    """

    table: Table
    name: str

    @property
    def origin(self) -> str:
        return self.table.origin

    @cached_property
    def _paths(self) -> list[str]:
        folder = self.table.files[0].parent
        return resolved(self.table.column(self.name).to_pylist(), folder, lambda row: f"{self.at(row)}: column {self.name!r}")

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.table.files, *map(Path, self._paths))

    @cached_property
    def features(self) -> datasets.Features:
        import datasets

        return datasets.Features({**self.table.features, self.name: datasets.Image(decode=False)})

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        if name != self.name:
            return self.table.column(name)
        return pa.chunked_array([pa.array([{"bytes": None, "path": path} for path in self._paths])])

    def written(self, name: str) -> pa.ChunkedArray | None:
        return self.table.written(name)

    def at(self, row: int) -> str:
        return self.table.at(row)


def names_images(table: Table, folder: Path, ignored: Iterable[str | None] = ()) -> str | None:
    """The column of a table that names its images; ``None``: there is none, or the images are in the table.

    Where the images are not there and other columns are numbers, the names say what was measured: no image is to be read.

    Args:
        folder: to which the names are relative.
        ignored: columns that have another role.
    """
    import datasets

    kinds = {name: kind for name, kind in table.features.items() if name not in ignored}
    if any(isinstance(kind, datasets.Image) or holds_bytes(kind) for kind in kinds.values()):
        return None
    columns = {name: names for name, kind in kinds.items() if is_string(kind) and (names := file_names(_values(table, name)))}
    images = {name: names for name, names in columns.items() if 2 * sum(map(is_image_name, names)) > len(names)}
    numbers = any(getattr(kind, "dtype", "").startswith(("float", "double")) for kind in kinds.values())
    there = {name for name, names in images.items() if any((folder / file.strip()).is_file() for file in islice(names, FIRST))}
    return choose([name for name in images if name in there or not numbers], IMAGE_COLUMNS)


def with_images(tables: Sequence[Table], ignored: Iterable[str | None]) -> list[Table]:
    """Tables of files with the images that one of their columns names, if one does.

    Args:
        ignored: as for :func:`names_images`.
    """

    def first(table: Table) -> Table:
        return first(table.tables[0]) if isinstance(table, Joined) else table

    def wrapped(table: Table, name: str) -> Table:
        if isinstance(table, Joined):
            return replace(table, tables=tuple(wrapped(part, name) for part in table.tables))
        if isinstance(table, Part):
            return replace(table, table=wrapped(table.table, name))
        return ImagesByPath(table, name) if name in table.features else table

    files = first(tables[0]).files
    name = names_images(tables[0], files[0].parent, ignored) if files else None
    if name is None:
        return [*tables]
    return [wrapped(table, name) for table in tables]


def _values(table: Table, name: str) -> list[object]:
    values: list[object] = table.column(name).to_pylist()
    return values
