"""The numbers of a column: of a numeric type, dates, or written as texts, such as ``45%`` or ``12 500``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_WITH_COMMAS = re.compile(r"\s*[-+]?(\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)\s*")
_BREAKS = " \u00a0\u2009\u202f'\u2019"  # between thousands
_FORMATTED = re.compile(
    rf"\s*(?P<sign>[-+\u2212]?)\s*(?P<before>[$€£¥]?)\s*(?P<digits>\d{{1,3}}(?:[{_BREAKS}]\d{{3}})+(?:\.\d+)?|\d+\.?\d*|\.\d+)"
    r"\s*(?P<after>[%$€£¥]?)\s*"
)


DATED = {"date": "dates", "time": "times"}
"""Units of numbers that are dates or times."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers ``(N,)`` float64, NaN where one is missing.

    Attributes:
        unit: ``%`` or a currency where each is written with it, ``date`` or ``time`` (in microseconds) of a type of these; of
            others, nothing.
    """

    values: NDArray[np.float64]
    unit: str = ""


def numbers_of(column: pa.ChunkedArray) -> Numbers | None:
    """The numbers of a column; ``None``: it holds something else. Long integers are rounded."""
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind):
        return Numbers(_floats(column))
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return Numbers(_floats(column.cast("timestamp[us]", safe=False).cast("int64")), "date")
    if kinds.is_time(kind) or kinds.is_duration(kind):
        return Numbers(_floats(column.cast("time64[us]" if kinds.is_time(kind) else "duration[us]").cast("int64")), "time")
    return _formatted(column) if is_string(column) else None


def is_string(column: pa.ChunkedArray) -> bool:
    """Whether a column holds texts, also coded as a dictionary."""
    import pyarrow.types as kinds

    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def plain_numbers(column: pa.ChunkedArray) -> tuple[Numbers, int | None]:
    """The numbers of a column of texts such as ``1234.5``, and the first row whose text is no number; ``None``: all are."""
    texts = [str(value or "").strip() for value in column.to_pylist()]
    odd = next((row for row, text in enumerate(texts) if text and not _PLAIN.fullmatch(text)), None)
    return Numbers(np.array([float(text) if text and odd is None else np.nan for text in texts])), odd


def no_number(column: pa.ChunkedArray) -> tuple[str, bool] | None:
    """An odd value in a column of texts that are mostly numbers, and whether it is a word, or a number that is written in another
    way than the others. ``None``: there is none, or most values are no numbers."""
    if not is_string(column) or _formatted(column) is not None:
        return None
    written = [str(value) for value in column.to_pylist() if value not in (None, "")]
    others = [value for value in written if not _PLAIN.fullmatch(value)]
    words = [value for value in others if not (_WITH_COMMAS.fullmatch(value) or _FORMATTED.fullmatch(value))]
    if not others or 2 * len(words) >= len(written):
        return None
    return (words or others)[0], bool(words)


def _formatted(column: pa.ChunkedArray) -> Numbers | None:
    """Texts that are numbers with a unit, the same for all, or with spaces or apostrophes between thousands.

    Plain numbers alone are codes: of a CSV file they would not be texts.
    """
    texts = [str(value).strip() for value in column.unique().to_pylist() if value is not None]
    parts = {text: _FORMATTED.fullmatch(text) for text in texts if text}
    if not parts or all(map(_PLAIN.fullmatch, parts)):
        return None
    values, units = {"": np.nan}, set()
    for text, part in parts.items():
        if part is None:
            return None
        units.add(part["before"] + part["after"])
        digits = float("".join(sign for sign in part["digits"] if sign not in _BREAKS))
        values[text] = -digits if part["sign"] in ("-", "\u2212") else digits
    if len(units) > 1:
        return None
    return Numbers(np.array([values[str(value or "").strip()] for value in column.to_pylist()]), units.pop())


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return np.asarray(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)


def are_identifiers(column: pa.ChunkedArray, numbers: Numbers, many: int) -> bool:
    """Whether a column holds at least ``many`` whole numbers, all of them distinct, as numbers of persons are.

    Numbers that are not whole are measured, however many of them are distinct.
    """
    import pyarrow.compute as pc

    there = numbers.values[~np.isnan(numbers.values)]
    return len(there) >= many and not (there[np.isfinite(there)] % 1).any() and pc.count_distinct(column).as_py() == len(there)


def units_differ(first: Numbers, other: Numbers) -> bool:
    """Whether the numbers of two columns have different units; a column without numbers fits any."""
    return first.unit != other.unit and not (np.isnan(first.values).all() or np.isnan(other.values).all())
