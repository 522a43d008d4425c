"""New rows of a table as a run's inputs, by the columns that it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.encoding import CategoryColumn, Column, Entries, NumberColumn, level_of
from fedpriv.data.tables.files import Columnar, Typed, open_file
from fedpriv.data.user_data.numbers import DATED, is_string, numbers_of, plain_numbers
from fedpriv.errors import UsageError
from fedpriv.untrusted.names import first_few

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_SHOWN = 3
"""How many unknown levels a line names."""


class NewRows(Columnar, Protocol):
    """Rows with columns by name; those that are not asked for may be anything."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""


@dataclass(frozen=True, eq=False)
class Frame(Typed):
    """The rows of a pandas DataFrame."""

    frame: pd.DataFrame

    @property
    def origin(self) -> str:
        return "the DataFrame"

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.frame.columns))

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        if self.names.count(name) > 1:
            raise UsageError(f"{self.origin} has the column {name!r} more than once")
        values = self.frame.iloc[:, self.names.index(name)]
        try:
            array = pa.Array.from_pandas(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # of several types: as in a file, they are texts
            array = pa.array([None if missing else str(value) for value, missing in zip(values, values.isna(), strict=True)])
        return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

    def at(self, row: int) -> str:
        return f"{self.origin}, row {self.frame.index[row]}"


def open_rows(data: Any) -> NewRows:
    """Rows that are given as a DataFrame, as a mapping of columns, as an array of numbers ``(N, F)``, whose columns are called
    ``x0``, ``x1`` ... as in training, or as the path of a CSV or parquet file.

    Raises:
        UsageError: they are none of these, or there is no such file.
    """
    import pandas as pd

    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
        return open_file(path)
    if isinstance(data, pd.DataFrame):
        return Frame(data)
    if isinstance(data, Mapping):
        return Frame(pd.DataFrame(dict(data)))
    if hasattr(data, "to_pandas"):  # of polars, pyarrow, and the `datasets` library
        return Frame(data.to_pandas())
    array = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
    if isinstance(array, np.ndarray) and array.ndim == 2 and array.dtype.kind in "fiub":
        return Frame(pd.DataFrame(array, columns=[f"x{number}" for number in range(array.shape[1])]))
    raise UsageError(
        f"rows of type {type(data).__name__}; expected a pandas DataFrame, a mapping of columns, numbers (N, F), or the path of "
        "a CSV or parquet file"
    )


def encode_rows(rows: NewRows, columns: Sequence[Column]) -> tuple[Tensor, list[str]]:
    """Rows ``(N, F)`` float32, and lines on what the user should know of how they were read.

    Other columns are ignored. A level that has no entry of its own is read as the one for all others.

    Raises:
        UsageError: a column is missing, there are no rows, a value is no number where training had numbers, is written in
            another unit, or is infinite.
    """
    if missing := [column.name for column in columns if column.name not in rows.names]:
        more = f" and {len(missing) - 1} more of training" if len(missing) > 1 else " of training"
        raise UsageError(f"{rows.origin} lacks the column {missing[0]!r}{more}; its columns are: {', '.join(rows.names)}")
    parts, notes = list[Entries](), list[str]()
    for column in columns:
        if isinstance(column, NumberColumn):
            numbers = _numbers(rows, column)
            parts.append(column.encode(numbers))
            if not column.gaps and (missing_here := int(np.isnan(numbers).sum())):
                notes.append(
                    f"column {column.name!r}: {missing_here:,} of {len(numbers):,} values are missing, which none was in "
                    f"training, and are read as the mean there ({column.mean:.4g})"
                )
        else:
            entries, note = _levels(rows, column)
            parts.append(entries)
            notes += note
    if not len(parts[0]):
        raise UsageError(f"{rows.origin} has no rows")
    return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32)), notes


def _numbers(rows: NewRows, column: NumberColumn) -> NDArray[np.float64]:
    """The numbers of a column ``(N,)``, NaN where one is missing."""
    name, values, what = column.name, rows.column(column.name), DATED.get(column.unit or "", "numbers")
    if values.null_count == len(values):
        return np.full(len(values), np.nan)
    numbers = numbers_of(_dates(values) if column.unit == "date" and is_string(values) else values)
    if numbers is None and is_string(values):
        numbers, odd = plain_numbers(values)
        if odd is not None:
            raise UsageError(
                f"{rows.at(odd)}: column {name!r} is {values[odd].as_py()!r}, and {what} in training; leave a cell empty where "
                "one is missing"
            )
    if numbers is None:
        raise UsageError(f"{rows.origin}: column {name!r} is {values.type}, and {what} in training")
    if (numbers.unit or None) != column.unit and not np.isnan(numbers.values).all():
        here, training = (unit or "plain numbers" for unit in (numbers.unit, column.unit))
        raise UsageError(f"{rows.origin}: column {name!r} is written as {here}, and as {training} in training")
    if (infinite := np.flatnonzero(np.isinf(numbers.values))).size:
        raise UsageError(f"{rows.at(int(infinite[0]))}: column {name!r} is {numbers.values[infinite[0]]}")
    return numbers.values


def _dates(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as dates, which a CSV file has and pandas reads as texts; unchanged if one is none."""
    import pyarrow as pa

    try:
        return values.cast("timestamp[us]")
    except pa.ArrowInvalid:
        return values


def _levels(rows: NewRows, column: CategoryColumn) -> tuple[Entries, list[str]]:
    """The entries of a column ``(N, width)``, and a line on values without an entry of their own."""
    values = list(map(level_of, rows.column(column.name).to_pylist()))
    if (written := rows.written(column.name)) is not None:  # a code such as 007, which in this file is a number
        texts = list(map(level_of, written.to_pylist()))
        values = [text if text in column.levels else value for text, value in zip(texts, values, strict=True)]
    entries = column.encode(values)
    unknown = sorted({repr(values[row]) for row in np.flatnonzero(entries[:, -1])})
    if not unknown:
        return entries, []
    count = int(entries[:, -1].sum())
    return entries, [
        f"column {column.name!r}: {count:,} of {len(values):,} values have no entry of their own from training, and are read as "
        f"the others there: {first_few(unknown, _SHOWN)}"
    ]
