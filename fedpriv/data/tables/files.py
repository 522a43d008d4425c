"""Tables: rows with typed columns, and those of parquet and CSV files. Images are not decoded here."""

from __future__ import annotations

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpriv.errors import FedprivError, UsageError, first_line

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

_OF_OBJECTS = re.compile(r"/objects/data-[0-9a-f]{16}/(?P<what>.+?)(\.parquet)?$")
"""Where :func:`fedpriv.data.user_data.objects.name_of` writes data that are Python objects: its files and folders."""
GIVEN_LABEL = "label"
"""The column into which it writes the labels ``y`` of arrays ``(x, y)``."""


class Columnar(Protocol):
    """Rows, read column by column on access."""

    @property
    def origin(self) -> str:
        """The source of the rows, for messages."""

    def column(self, name: str) -> pa.ChunkedArray:
        """One column; the others are not read."""

    def written(self, name: str) -> pa.ChunkedArray | None:
        """One column of CSV as texts, as they are in the file; ``None``: the rows have types of their own."""

    def at(self, row: int) -> str:
        """Where a row is, for messages."""


class Table(Columnar, Protocol):
    """Rows with typed columns."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files on disk on which the rows depend."""

    @property
    def features(self) -> datasets.Features:
        """Column names and Hugging Face feature types."""


class Typed:
    """Rows that have types of their own, unlike those of CSV."""

    def written(self, name: str) -> None:
        return None


@dataclass(frozen=True)
class ParquetTable(Typed):
    """The rows of parquet files, one after the other."""

    files: tuple[Path, ...]

    @property
    def origin(self) -> str:
        return ", ".join(map(shown, self.files))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, which :attr:`features` has, too, with their types."""
        import pyarrow.parquet as pq

        file = self.files[0]
        with _readable(file):
            names = pq.read_schema(file).names
        _check_columns(names, file)
        return tuple(names)

    @cached_property
    def features(self) -> datasets.Features:
        import datasets
        import pyarrow.parquet as pq

        file = self.files[0]
        with _readable(file):
            schema = pq.read_schema(file)
        _check_columns(schema.names, file)
        try:
            with _readable(file):
                return datasets.Features.from_arrow_schema(schema)
        except (AttributeError, LookupError, RecursionError, TypeError) as error:
            raise FedprivError(
                f"{file}: its metadata `huggingface` does not describe columns as the `datasets` library does "
                f"({first_line(error)}); write the file anew, with another description or none"
            ) from None

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = []
        for file in self.files:
            with _readable(file):
                # Not read_table, which would take a parent folder such as `label=3` for a column.
                table = pq.ParquetFile(file).read(columns=[name])
            if name not in table.column_names:
                raise UsageError(f"{file} has no column {name!r}, which {self.files[0]} has")
            if file != self.files[0] and class_names(ParquetTable((file,)), name) != class_names(self, name):
                raise UsageError(f"{file} and {self.files[0]} have other classes in column {name!r}")
            parts.append(without_half_floats(table.column(name)))
        try:
            return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)
        except (pa.ArrowInvalid, TypeError):
            raise UsageError(f"column {name!r} has not the same type in all of {self.origin}") from None

    def at(self, row: int) -> str:
        return from_zero(self.origin, row)


@dataclass(frozen=True)
class CsvTable:
    """The rows of a CSV file with a header."""

    file: Path

    @property
    def origin(self) -> str:
        return str(self.file)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    @cached_property
    def _rows(self) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv as arrow

        _check_header(self.file)
        with _readable(self.file):
            # A text may hold line breaks, and an empty one is not a missing one.
            rows = arrow.read_csv(
                self.file,
                parse_options=arrow.ParseOptions(newlines_in_values=True),
                convert_options=arrow.ConvertOptions(strings_can_be_null=False),
            )
        try:
            # Names are decoded here; a column that cannot be has become one of bytes.
            columns = zip(rows.schema.names, rows.schema.types, strict=True)
            where = next((f"its column {name!r}" for name, kind in columns if pa.types.is_binary(kind)), None)
        except UnicodeDecodeError:
            where = "its header"
        if where is not None:
            hint = f"convert it; from Latin-1: iconv -f latin1 -t utf-8 {shlex.quote(self.file.name)} > utf8.csv"
            raise UsageError(f"{self.file}: {where} is not UTF-8; {hint}")
        return rows

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names; see :attr:`ParquetTable.names`."""
        _check_columns(self._rows.schema.names, self.file)
        return tuple(self._rows.schema.names)

    @cached_property
    def features(self) -> datasets.Features:
        import datasets

        _check_columns(self._rows.schema.names, self.file)
        return datasets.Features.from_arrow_schema(self._rows.schema)

    def column(self, name: str) -> pa.ChunkedArray:
        return self._rows.column(name)

    def written(self, name: str) -> pa.ChunkedArray:
        """One column as texts, as they are in the file; of numbers, :meth:`column` has no leading zeros."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        with _readable(self.file):
            rows = arrow.read_csv(
                self.file,
                parse_options=arrow.ParseOptions(newlines_in_values=True),
                convert_options=arrow.ConvertOptions(include_columns=[name], column_types={name: pa.string()}),
            )
        return rows.column(name)

    def at(self, row: int) -> str:
        return f"{self.file}, line {self._line(row)}"

    def _line(self, row: int) -> int:
        """The line on which a row begins, as an editor counts them. A text may hold line breaks, and an empty line is no row."""
        begins, row_number = 1, -2  # the header comes before row 0
        with self.file.open(encoding="utf-8", errors="replace", newline="") as opened, suppress(csv.Error):
            reader = csv.reader(opened)
            for values in reader:
                row_number += bool(values)
                if row_number == row:
                    return begins
                begins = reader.line_num + 1
        return row + 2


def shown(file: Path) -> str:
    """A file or folder, for messages; of data given in Python, which the user never saw as a file, their client and split."""
    of_objects = _OF_OBJECTS.search(str(file))
    return f"the given data ({of_objects['what']})" if of_objects else str(file)


def is_array(table: Table, name: str) -> bool:
    """Whether a column holds labels that were given in Python, and so has a name that the user never gave it."""
    return name == GIVEN_LABEL and bool(table.files) and all(_OF_OBJECTS.search(str(file)) for file in table.files)


def called(table: Table, name: str) -> str:
    """A column, for messages; labels that were given in Python are ``y``, as in ``(x, y)``."""
    return "y" if is_array(table, name) else f"column {name!r}"


def from_zero(origin: str, row: int) -> str:
    """Where a row is in a table without lines, for messages."""
    return f"{origin}, row {row} (from 0)"


def without_half_floats(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as it is, but half floats as float32: pyarrow cannot count the distinct values of half floats."""
    import pyarrow as pa

    return values.cast(pa.float32()) if pa.types.is_float16(values.type) else values


def class_names(table: Table, column: str) -> tuple[str, ...] | None:
    """The names that a table's type gives the classes of a column; ``None``: it gives none."""
    import datasets

    kind = table.features[column]
    return tuple(kind.names) if isinstance(kind, datasets.ClassLabel) else None


def array_types() -> tuple[Any, ...]:
    """The types of columns whose values are arrays of one shape."""
    import datasets

    return datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FedprivError(f"{file} is not a valid {file.suffix[1:]} file: {first_line(error)}") from None


def _check_header(file: Path) -> None:
    with _readable(file), file.open("rb") as opened:
        header = next((line for line in opened if line.strip()), None)
    if header is None:
        raise UsageError(f"{file} is empty; its first line names the columns")
    for sign, name in ((b";", "semicolons"), (b"\t", "tabs")):
        if sign in header and b"," not in header:
            raise UsageError(f"{file}: {name} separate its columns; save it with commas between them, and points in numbers")


def _check_columns(names: Sequence[str], file: Path) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"{file} has the column {twice[0]!r} more than once")


def open_file(file: Path) -> CsvTable | ParquetTable:
    """The rows of a parquet or a CSV file, by its suffix.

    Raises:
        UsageError: it has another suffix.
    """
    kind = file.suffix.lower()
    if kind == ".csv":
        return CsvTable(file)
    if kind != ".parquet":
        raise UsageError(
            f"{file} is no .csv or .parquet file; arrays and data sets in Python go through fedpriv.train(dataset=...)"
        )
    return ParquetTable((file,))
