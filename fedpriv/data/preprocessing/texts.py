"""New texts: from a list, a column, or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.data.preprocessing.rows import Frame, NewRows
from fedpriv.data.tables.columns import TEXT_COLUMNS
from fedpriv.data.tables.files import open_file
from fedpriv.data.user_data.numbers import is_string
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def read_texts(data: Any) -> tuple[tuple[str, ...], pd.Index | None]:
    """Texts that are given as one, as a list, an array, a Series, a column of a DataFrame, or the path of a CSV or parquet file
    with a column of texts or of a .txt file with a text in each line; and their index in pandas, if they have one.

    Raises:
        UsageError: they are none of these, the column of the texts is not known, or a text is empty.
    """
    import pandas as pd

    if isinstance(data, Path) or (isinstance(data, str) and _is_file(data)):
        path = Path(data).expanduser()
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
        if path.suffix.lower() == ".txt":
            return _checked(path.read_text(encoding="utf-8").splitlines(), lambda row: f"{path}, line {row + 1}"), None
        table = open_file(path)
        return _of_column(table), None
    if isinstance(data, str):
        return _checked([data], lambda row: "the text"), None
    if isinstance(data, Mapping):
        data = pd.DataFrame(dict(data))
    elif hasattr(data, "to_pandas"):
        data = data.to_pandas()
    if isinstance(data, pd.DataFrame):
        return _of_column(Frame(data)), data.index
    index = data.index if isinstance(data, pd.Series) else None
    if not isinstance(data, list | tuple | np.ndarray | pd.Series):
        raise UsageError(f"texts of type {type(data).__name__}; expected a list of texts, a column of them, or a path")
    return _checked(list(data), lambda row: f"text {row} (from 0)"), index


def _is_file(text: str) -> bool:
    """Whether a text is a path, rather than a text to be classified."""
    return Path(text).suffix.lower() in (".csv", ".parquet", ".txt") and (os.path.sep in text or " " not in text)


def _of_column(rows: NewRows) -> tuple[str, ...]:
    strings = [name for name in rows.names if is_string(rows.column(name))]
    name = next((name for name in TEXT_COLUMNS if name in strings), strings[0] if len(strings) == 1 else None)
    if name is None:
        what = "no column of texts" if not strings else f"several columns of texts ({', '.join(strings)}); name one 'text'"
        raise UsageError(f"{rows.origin} has {what}" + ("" if strings else f"; its columns are: {', '.join(rows.names)}"))
    values = rows.column(name).to_pylist()
    return _checked(values, lambda row: f"{rows.at(row)}: column {name!r}")


def _checked(values: Sequence[object], at: Any) -> tuple[str, ...]:
    import pandas as pd

    if not values:
        raise UsageError("no texts")
    if odd := [row for row, value in enumerate(values) if not isinstance(value, str) or not value.strip()]:
        value = values[odd[0]]
        empty = isinstance(value, str) or pd.isna(value) is True
        raise UsageError(f"{at(odd[0])} {'is empty' if empty else f'is {value!r}, no text'}")
    return tuple(str(value).strip() for value in values)
