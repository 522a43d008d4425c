"""Rows of a table that become vectors: which columns are features, and their cells as numbers and categories.

Dates and times that are named as features are numbers, too. :mod:`fedpriv.data.encoding` says how a cell is written.

Their means, deviations and levels are found once the clients are known (:mod:`fedpriv.data.statistics`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.encoding import MOST_LEVELS
from fedpriv.data.statistics.cells import ArrayCells, CategoryCells, Cells, EmptyCells, NumberCells
from fedpriv.data.tables.joined import Joined
from fedpriv.data.user_data.numbers import DATED, Numbers, are_identifiers, is_string, no_number, numbers_of, units_differ
from fedpriv.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from fedpriv.data.tables.columns import Columns
    from fedpriv.data.tables.files import Table

MANY = 50
"""In so many rows, whole numbers that measure something are not all distinct."""
_WORDS = re.compile(r"[^\W\d_]{2,}\W*\s\W*\w|\w\W*\s\W*[^\W\d_]{2,}|[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]{2}")
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")  # pandas': of parquet, of CSV read and written again, of CSV
TEXTS = "text: over half of its values are distinct"
EMPTY = "empty"
ROW_NUMBERS = "row numbers"
IDENTIFIERS = "identifiers: another whole number in every row"
_NUMBERS = (ROW_NUMBERS, IDENTIFIERS, *DATED.values())
"""Reasons why a column of numbers is no feature unless it is named as one."""
Rows = tuple["Table", NDArray[np.int64]]


def choose_features(
    table: Table, label: str | None, client: str | None, named: Sequence[str] | None = None, dropped: Sequence[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The columns of a table that are features, lines on those that are left out, and these, each with a reason.

    Left out are row numbers (in any order, as after shuffling; of all rows, or of each client's), identifiers (whole numbers of
    which no two are the same), dates and times, texts (over half of the values are distinct), and what is neither number nor
    category.

    Args:
        label, client: the columns of the labels and of the clients, which are no features.
        named: the only features, also numbers that would be left out; ``None``: all that are none of the above.
        dropped: columns that are no features, without a line on them.

    Raises:
        UsageError: a column holds numbers, and some values that are none, so that it would be left out as a text; or a named
            one can be no feature.
    """
    arrays = [name for name in named or table.features if array_shape(table, name) and name not in (label, client, *dropped)]
    if arrays:
        others = [name for name in table.features if name not in (arrays[0], label, client, *dropped)]
        unused = f"; not used: {', '.join(others)}" if others else ""
        shape = array_shape(table, arrays[0])
        return (
            (arrays[0],),
            (f"the samples are arrays of shape {shape}, scaled by the mean and deviation of each channel{unused}",),
            (),
        )
    chosen, notes, left_out = list[str](), list[str](), list[tuple[str, str]]()
    owners = _owners(table, client)
    for name in table.features if named is None else named:
        if name in (label, client, *dropped):
            continue
        values = table.column(name)
        reason = _no_feature(name, values, owners)
        odd = no_number(values) if reason in (None, TEXTS) else None
        if odd is not None and (reason == TEXTS or not odd[1]):
            raise UsageError(
                f"{table.origin}: column {name!r} holds numbers, but also {odd[0]!r}; leave a cell empty where a number is "
                "missing, write 1234.5 for one, or leave out the column (data.drop)"
            )
        if named is not None and reason not in (None, EMPTY, *_NUMBERS):
            raise UsageError(f"data.features: column {name!r} of {table.origin} can be no feature ({reason})")
        if reason is None or (named is not None and reason != EMPTY):
            chosen.append(name)
            if odd is not None:
                notes.append(
                    f"column {name!r} is read as categories, though most of its values are numbers: one of them is {odd[0]!r}"
                )
        else:
            left_out.append((name, reason))
    if left_out and named is None:
        shown = ", ".join(f"{name} ({reason})" for name, reason in left_out)
        notes.insert(0, f"columns that are no features: {shown}; --set data.features=[NAME,...] names those to use")
    return tuple(chosen), tuple(notes), tuple(left_out)


def _owners(table: Table, client: str | None) -> list[NDArray[np.int64]]:
    """The number of each row's owner ``(N,)``, by each way to tell owners apart: the clients' folders, and a column."""
    owners = [table.owners()] if isinstance(table, Joined) else []
    if client is not None:
        owners.append(np.unique([str(value) for value in table.column(client).to_pylist()], return_inverse=True)[1])
    return owners


def is_text(values: pa.ChunkedArray) -> bool:
    """Whether over half of the values of a column of strings are distinct, so that they are no categories."""
    return len(values.unique()) > len(values) / 2


def array_shape(table: Table, name: str) -> tuple[int, ...]:
    """The shape of the arrays in a column; of another column none, ``()``."""
    from fedpriv.data.tables.files import array_types

    kind: Any = table.features[name]
    return tuple(kind.shape) if isinstance(kind, array_types()) else ()


def arrays_of(rows: Rows, name: str) -> NDArray[np.floating[Any]]:
    """The arrays ``(N, C, ...)`` in a column.

    Raises:
        UsageError: a number is missing or infinite.
    """
    table, places = rows
    column, shape = table.column(name).take(places), array_shape(table, name)
    parts = [np.stack(chunk.to_numpy(zero_copy_only=False)) for chunk in column.chunks if len(chunk)]
    arrays = np.concatenate(parts).reshape(-1, *shape)
    if (odd := np.flatnonzero(~np.isfinite(arrays.reshape(len(arrays), -1)).all(1))).size:
        raise UsageError(f"{table.at(int(places[odd[0]]))}: column {name!r} holds a NaN or an infinity; mend it, or leave it out")
    return arrays


def has_words(values: pa.ChunkedArray) -> bool:
    """Whether over half of the values of a column of strings are texts, and no codes of persons or files.

    They then have several words, or are of a script without spaces between words.
    """
    there = [str(value) for value in values.to_pylist() if value]
    return 2 * sum(_WORDS.search(value) is not None for value in there) > len(there)


def read_cells(train: Rows, test: Rows, columns: Columns, every: bool = False) -> tuple[Cells, ...]:
    """The cells of the columns that are features, of training and test rows; or a column of arrays.

    Args:
        every: also of columns that these rows alone would leave out; with the rows of other clients they may be features.

    Raises:
        UsageError: a number is infinite, or a column is of another kind in the test rows, or than is declared.
    """
    features = columns.features
    left_out = {name: reason for name, reason in columns.left_out if every and (reason in _NUMBERS or reason in (TEXTS, EMPTY))}
    for key, names in (("data.bounds", columns.numbers), ("data.levels", columns.categories)):
        if strange := [name for name in names if name not in (*features, *left_out)]:
            raise UnknownName(f"column in {key}", strange[0], features)
    if array_shape(train[0], features[0]):
        return (_array_cells(train, test, features[0]),)
    if not every and (empty := [name for name in columns.named if name not in features]):
        raise UsageError(f"data.features: column {empty[0]!r} of {train[0].origin} is empty")
    chosen = [name for name in train[0].features if name in features or name in left_out]
    return tuple(_cells(train, test, name, columns, left_out.get(name, "")) for name in chosen)


def _array_cells(train: Rows, test: Rows, name: str) -> ArrayCells:
    if array_shape(test[0], name) != (shape := array_shape(train[0], name)):
        raise UsageError(f"{test[0].origin}: column {name!r} is of shape {array_shape(test[0], name)}, in training {shape}")
    return ArrayCells(name, arrays_of(train, name), arrays_of(test, name))


def _cells(train: Rows, test: Rows, name: str, columns: Columns, left_out: str) -> Cells:
    (seen, rows), (unseen, test_rows) = ((table.column(name), rows) for table, rows in (train, test))
    if left_out == EMPTY:
        return EmptyCells(name, np.full(len(rows), np.nan), np.full(len(test_rows), np.nan), left_out)
    declared = name in columns.categories
    numbers, other = (None, None) if declared else (numbers_of(seen), numbers_of(unseen))
    if not declared and (numbers is None) != (other is None) and unseen.null_count < len(unseen):
        raise UsageError(f"{test[0].origin}: column {name!r} is {unseen.type}, and {seen.type} in {train[0].origin}")
    if numbers is None:
        if name in columns.numbers:
            raise UsageError(f"data.bounds: column {name!r} of {train[0].origin} holds no numbers")
        return CategoryCells.of(name, seen.take(rows).to_pylist(), unseen.take(test_rows).to_pylist(), left_out)
    other = other or Numbers(np.full(len(unseen), np.nan))
    if units_differ(numbers, other):
        raise UsageError(
            f"{test[0].origin}: column {name!r} is written as {other.unit or 'plain numbers'}, and as "
            f"{numbers.unit or 'plain numbers'} in {train[0].origin}"
        )
    return NumberCells(
        name, _finite(numbers, name, train[0])[rows], _finite(other, name, test[0])[test_rows], numbers.unit, left_out
    )


def _no_feature(name: str, values: pa.ChunkedArray, owners: Sequence[NDArray[np.int64]]) -> str | None:
    """Why a column is no feature."""
    if values.null_count == len(values):
        return EMPTY
    if _are_row_numbers(name, values, owners):
        return ROW_NUMBERS
    if (numbers := numbers_of(values)) is not None:
        if numbers.unit in DATED:
            return DATED[numbers.unit]
        return IDENTIFIERS if are_identifiers(values, numbers, MANY) else None
    if is_string(values):
        return TEXTS if is_text(values) else None
    return str(values.type)


def _are_row_numbers(name: str, values: pa.ChunkedArray, owners: Sequence[NDArray[np.int64]]) -> bool:
    """Whether a column numbers the rows, or each owner's rows. Where samples are sorted, such a number gives the label away.

    It is told by a name that pandas gives to an index, or by its values (:func:`_number_rows`).
    """
    import pyarrow.types as kinds

    if _INDEX.fullmatch(name):
        return True
    if not kinds.is_integer(values.type) or values.null_count:
        return False
    numbers = values.to_numpy()
    if len(np.unique(numbers)) <= MOST_LEVELS:  # a month, or whether a patient was treated in that visit, says more than a place
        owners = ()
    return any(_number_rows(numbers, groups) for groups in (np.zeros(len(numbers), dtype=np.int64), *owners))


def _number_rows(numbers: NDArray[np.integer[Any]], owners: NDArray[np.int64]) -> bool:
    """Whether whole numbers ``(N,)`` number the rows of each owner, in any order.

    Each owner's numbers must be distinct. They must also run from 0 or 1 on without a gap, or be many and fill at least half of
    their range, as after a split.

    Args:
        owners: ``(N,)`` whose each row is.
    """
    order = np.lexsort((numbers, owners))
    numbers, begins = numbers[order], np.diff(owners[order], prepend=-1) > 0
    steps, held = np.diff(numbers)[~begins[1:]], int(begins.sum())
    if len(numbers) < 2 * held or not (steps > 0).all():  # of owners with one row, any column would number the rows
        return False
    span = float(steps.sum(dtype=np.float64)) + held
    whole = span == len(numbers) and bool(np.isin(numbers[begins], (0, 1)).all())
    return whole or (len(numbers) - held >= MANY - 1 and 2 * len(numbers) >= span)


def _finite(numbers: Numbers, name: str, table: Table) -> NDArray[np.float64]:
    """``(N,)`` with NaN where a number is missing."""
    values = numbers.values
    if (infinite := np.flatnonzero(np.isinf(values))).size:
        raise UsageError(f"{table.at(infinite[0])}: column {name!r} is {values[infinite[0]]}")
    return values
