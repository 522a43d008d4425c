"""The labels of tables: class ids, whatever they are in the file (classes by name, numbers, or texts), or numbers to predict."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.tables.files import called, class_names
from fedpriv.errors import UsageError
from fedpriv.untrusted.names import first_few

if TYPE_CHECKING:
    import pyarrow as pa

    from fedpriv.data.tables.files import Table

FEW = 20
"""Up to so many distinct labels may be classes, however few samples there are."""
NEARLY_ALL = 0.9
"""With more distinct labels than this share of the samples, labels are names of samples."""

_SHOWN = 5
"""How many classes an error names, and how many groups of spellings a line."""
_LEADING_ZERO = r"^\s*[-+]?0[0-9]"


def read_labels(tables: list[Table], column: str) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Class ids ``(N,)`` per table, and the classes' names: those of the first table's type, else its sorted values.

    Tables that number the same classes in another way are read by the classes' names. Spaces around a name do not count. Numbers
    without names are ids, but in CSV those with leading zeros are names.

    Raises:
        UsageError: a table has no rows, the column holds no classes, or a row has no label or one that is none of the classes.
    """
    raw = [_column(table, column) for table in tables]
    given = class_names(tables[0], column)
    values = [_values(table, array, column, given) for table, array in zip(tables, raw, strict=True)]
    # pandas writes whole numbers as floats where one of them is missing: beside a table of integers, floats are ids, too.
    numbers = given is None and all(np.issubdtype(array.dtype, np.number) for array in values)
    numbered = numbers and any(np.issubdtype(array.dtype, np.integer) for array in values)
    if given is not None:
        classes = given
    elif (quantities := _no_classes(raw[0], values[0])) is not None:
        raise UsageError(
            f"{tables[0].origin}: {called(tables[0], column)} holds {quantities}; a label is a class, which samples share: name "
            "another column (--set data.label=NAME), or put a class, such as a range, in place of each; of rows of a table, "
            "data.task=regression predicts numbers"
        )
    elif numbered:
        classes = _numbered(tables, values, column)
    else:
        classes = tuple(sorted({str(value).strip() for value in values[0]}))
    return [
        _ids(table, array, column, classes, numbered or given is not None) for table, array in zip(tables, values, strict=True)
    ], classes


def look_like_numbers(table: Table, column: str) -> bool:
    """Whether labels look like numbers to predict: there are more than :data:`FEW` different ones, and these are not the whole
    numbers from 0 or 1 on without a gap, which number classes."""
    from fedpriv.data.user_data.numbers import DATED, numbers_of

    if class_names(table, column) is not None or (numbers := numbers_of(_column(table, column))) is None or numbers.unit in DATED:
        return False
    distinct = np.unique(numbers.values[~np.isnan(numbers.values)])
    return len(distinct) > FEW and not any(np.array_equal(distinct, start + np.arange(len(distinct))) for start in (0, 1))


def read_numbers(tables: list[Table], column: str) -> tuple[list[NDArray[np.float64]], str]:
    """Labels that are numbers ``(N,)``, of each table, and the unit with which they are written.

    Raises:
        UsageError: a table has no rows; a label is missing, infinite, or no number; or the tables' units differ.
    """
    from fedpriv.data.user_data.numbers import DATED, Numbers, is_string, numbers_of, plain_numbers, units_differ

    read = list[Numbers]()
    for table in tables:
        values, odd = table.column(column), None
        if not len(values):
            raise UsageError(f"{table.origin} has no rows")
        if (numbers := numbers_of(values)) is None and is_string(values):
            numbers, odd = plain_numbers(values)
        if odd is not None:
            what = f"the label in {called(table, column)} is {values[odd].as_py()!r}, and no number"
            raise UsageError(f"{table.at(odd)}: {what}; mend or leave out the row, or predict classes (data.task=classification)")
        if numbers is None or numbers.unit in DATED:
            what = "no numbers" if numbers is None else DATED[numbers.unit]
            raise UsageError(f"{table.origin}: {called(table, column)} holds {what}, which data.task=regression cannot predict")
        if (rows := np.flatnonzero(~np.isfinite(numbers.values))).size:
            value = numbers.values[rows[0]]
            what = "missing" if np.isnan(value) else f"{value}"
            raise UsageError(f"{table.at(rows[0])}: the label in {called(table, column)} is {what}; mend or leave out the row")
        read.append(numbers)
        if units_differ(read[0], numbers):
            units = " and ".join(other.unit or "plain numbers" for other in (read[0], numbers))
            raise UsageError(f"{table.origin}: the labels in {called(table, column)} are written in two ways: {units}")
    return [numbers.values for numbers in read], read[0].unit


def spellings(values: Iterable[object], where: str, read_as: str) -> Iterator[str]:
    """A line on values that differ in capital letters, spaces, unseen characters or Unicode form alone.

    Args:
        where: the column, for the line.
        read_as: what the values are, in the plural.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted({str(value) for value in values if value is not None}):
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        groups.setdefault("".join(sign for sign in folded if unicodedata.category(sign)[0] not in "ZC"), []).append(name)
    if alike := [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]:
        more = f", and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
        yield (
            f"{where}: {', '.join(alike[:_SHOWN])}{more} are different {read_as}, though they differ only in capital "
            "letters, spaces or the form of Unicode; write them alike if they are the same"
        )


def _column(table: Table, name: str) -> pa.ChunkedArray:
    """A column of labels; of CSV files, as written where a number has a leading zero, since ``01`` and ``1`` are two names."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    column = table.column(name)
    if not (kinds.is_integer(column.type) or kinds.is_floating(column.type)):
        return column
    written = table.written(name)
    return column if written is None or not pc.any(pc.match_substring_regex(written, _LEADING_ZERO)).as_py() else written


def _values(table: Table, column: pa.ChunkedArray, name: str, given: tuple[str, ...] | None) -> NDArray[Any]:
    """The values of a column of labels ``(N,)``; as names, where the table names its classes otherwise than ``given``."""
    if column.null_count:
        raise UsageError(f"{table.origin} has {column.null_count} rows without a label in {called(table, name)}")
    values: NDArray[Any] = column.to_numpy()
    if not len(values):
        raise UsageError(f"{table.origin} has no rows")
    if np.issubdtype(values.dtype, np.floating) and (rows := np.flatnonzero(~np.isfinite(values))).size:
        raise UsageError(f"{table.at(rows[0])}: the label in {called(table, name)} is {values[rows[0]]}")
    if np.issubdtype(values.dtype, np.floating):
        values = values + 0.0  # makes -0.0 0.0
    if values.dtype == object and isinstance(values[0], np.ndarray | dict | bytes):
        raise UsageError(f"{table.origin}: {called(table, name)} holds no labels but a {type(values[0]).__name__} in each row")
    blank = [row for row, value in enumerate(values) if not str(value).strip()] if values.dtype == object else []
    if blank:
        raise UsageError(f"{table.at(blank[0])}: the label in {called(table, name)} is empty")
    names = class_names(table, name)
    if names is None or names == given:
        return values
    return np.array([names[value] if 0 <= value < len(names) else str(value) for value in values], dtype=object)


def _numbered(tables: list[Table], values: list[NDArray[Any]], column: str) -> tuple[str, ...]:
    """The names of classes that are numbers."""
    for table, array in zip(tables, values, strict=True):
        if (rows := np.flatnonzero(array < 0)).size:
            raise UsageError(
                f"{table.at(rows[0])}: label {array[rows[0]]} in {called(table, column)} is negative; number the classes from 0, "
                "or name them, and leave out samples without a label; of rows of a table, data.task=regression predicts numbers"
            )
    highest = max(int(array.max()) for array in values)
    if highest >= sum(map(len, values)):
        raise UsageError(
            f"{tables[0].origin}: label {highest} in {called(tables[0], column)} is too high; number the classes from 0, or name "
            "them; of rows of a table, data.task=regression predicts numbers"
        )
    return tuple(map(str, range(highest + 1)))


def _ids(table: Table, values: NDArray[Any], column: str, classes: tuple[str, ...], numbers: bool) -> NDArray[np.int64]:
    """The class ids ``(N,)`` of labels.

    Args:
        numbers: whether numbers are ids; else they are names.
    """
    if numbers and np.issubdtype(values.dtype, np.number):
        ids = np.where(values % 1 == 0, values, -1).astype(np.int64)
    else:
        known = {cls: i for i, cls in enumerate(classes)}
        ids = np.array([known.get(str(value).strip(), -1) for value in values], dtype=np.int64)
    outside = np.flatnonzero((ids < 0) | (ids >= len(classes)))
    if len(outside):
        shown = values[outside].tolist()[0]
        what = f"label {shown!r} in {called(table, column)} is none of the {len(classes)} classes"
        raise UsageError(f"{table.at(outside[0])}: {what}: {first_few(classes, _SHOWN)}")
    return ids


def _no_classes(column: pa.ChunkedArray, values: NDArray[Any]) -> str | None:
    """Why a column of labels holds no classes: names of samples, or quantities; ``None``: it may."""
    distinct = len(column.unique()) if values.dtype == object else len(np.unique(values))
    if distinct <= FEW or not (distinct > NEARLY_ALL * len(values) or _are_quantities(values)):
        return None
    return f"{distinct:,} values in {len(values):,} rows, such as {values[0]!s}"


def _are_quantities(values: NDArray[Any]) -> bool:
    """Whether labels ``(N,)`` are numbers, or texts that are numbers, and not all of them whole."""
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        return False
    return bool((numbers[np.isfinite(numbers)] % 1).any())
