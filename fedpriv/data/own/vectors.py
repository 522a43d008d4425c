"""Rows of a table as vectors: numbers standardised, categories one-hot, by statistics of the training rows.

A number becomes ``(x - mean) / std``. A missing one becomes 0, the mean; a column that misses any in the training rows gets a
second one, which is 1 where the number is missing. A category becomes one column for each of its :data:`MOST_LEVELS` most
frequent levels in the training rows, and one for every other level. A missing category is a level of its own.

The statistics are those of all clients' training rows. For a federation to have them, its server would learn of each column the
number of values, their sum and sum of squares, and how often each level occurs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.own.clients import Joined
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from fedpriv.data.tables.files import Table

MOST_LEVELS = 20
MANY = 50
"""Of so many rows, a measurement does not have a distinct whole number in each."""
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")  # pandas': of parquet, of CSV read and written again, of CSV
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_WITH_COMMAS = re.compile(r"\s*[-+]?(\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)\s*")
TEXTS = "text: over half of its values are distinct"
PUBLIC = (
    "columns are scaled and coded by statistics of all clients' training rows (means, deviations, levels), which count as "
    "public: a server that collects them learns them, and no epsilon covers them"
)
Rows = tuple["Table", NDArray[np.int64]]


def choose_features(table: Table, label: str | None, client: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of a table that are features, and a line on those that are left out.

    Left out are row numbers (in any order, as after shuffling; of all rows, or of each client's), texts (over half of the values
    are distinct), and what is neither number nor category.

    Args:
        label, client: the columns of the labels and of the clients, which are no features.

    Raises:
        UsageError: a column holds numbers, and some values that are none, so that it would be left out as a text.
    """
    chosen, left_out, notes = [], [], []
    owners = _owners(table, client)
    for name in table.features:
        if name in (label, client):
            continue
        values = table.column(name)
        reason = _no_feature(name, values, owners)
        odd = no_number(values) if reason in (None, TEXTS) else None
        if reason == TEXTS and odd is not None:
            raise UsageError(
                f"{table.origin}: column {name!r} holds numbers, but also {odd!r}; leave a cell empty where a number is missing, "
                "write 1234.5 for one, or remove the column"
            )
        if reason is None:
            chosen.append(name)
            if odd is not None:
                notes.append(
                    f"column {name!r} is read as categories, though most of its values are numbers: one of them is {odd!r}"
                )
        else:
            left_out.append(f"{name} ({reason})")
    if left_out:
        notes.insert(0, f"columns that are no features: {', '.join(left_out)}")
    return tuple(chosen), tuple(notes)


def _owners(table: Table, client: str | None) -> list[NDArray[np.int64]]:
    """The number of each row's owner ``(N,)``, by each way to tell owners apart: the clients' folders, and a column."""
    found = [table.owners()] if isinstance(table, Joined) else []
    if client is not None:
        found.append(np.unique([str(value) for value in table.column(client).to_pylist()], return_inverse=True)[1])
    return found


def no_number(values: pa.ChunkedArray) -> str | None:
    """The first value of a column of strings that is no number, where most are, or are written as numbers with commas; ``None``:
    there is none, or most are not."""
    if _is_number(values):
        return None
    found = [str(value) for value in values.to_pylist() if value not in (None, "")]
    others = [value for value in found if not _NUMBER.fullmatch(value)]
    words = sum(not _WITH_COMMAS.fullmatch(value) for value in others)
    return others[0] if others and 2 * words < len(found) else None


def is_text(values: pa.ChunkedArray) -> bool:
    """Whether over half of the values of a column of strings are distinct, so that they are no categories."""
    return len(values.unique()) > len(values) / 2


def vectors(train: Rows, test: Rows, features: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Training and test rows ``(N, F)`` float32.

    Raises:
        UsageError: a number is infinite, or a column is of another kind in the test rows.
    """
    parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for name in features:
        (seen, rows), (unseen, test_rows) = ((table.column(name), rows) for table, rows in (train, test))
        numeric = _is_number(seen)
        if numeric != _is_number(unseen) and unseen.null_count < len(unseen):
            raise UsageError(f"{test[0].origin}: column {name!r} is {unseen.type}, and {seen.type} in {train[0].origin}")
        if numeric:
            parts.append(_scaled(_numbers(seen, name, train[0])[rows], _numbers(unseen, name, test[0])[test_rows]))
        else:
            parts.append(_coded([*seen.take(rows).to_pylist()], [*unseen.take(test_rows).to_pylist()]))
    first, second = (np.concatenate(columns, axis=1).astype(np.float32) for columns in zip(*parts, strict=True))
    return torch.from_numpy(first), torch.from_numpy(second)


def _scaled(train: NDArray[np.float64], test: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # Of equal numbers, the rounded mean leaves a deviation of about 1e-17, over which another number would be enormous.
    constant = np.nanmin(train) == np.nanmax(train)
    mean, std = (np.nanmin(train), 1.0) if constant else (np.nanmean(train), np.nanstd(train))
    both = [np.nan_to_num((values - mean) / std, nan=0.0)[:, None] for values in (train, test)]
    if np.isnan(train).any():
        missing = (np.isnan(values)[:, None].astype(float) for values in (train, test))
        both = [np.concatenate(pair, axis=1) for pair in zip(both, missing, strict=True)]
    return both[0], both[1]


def _coded(train: Sequence[object], test: Sequence[object]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    seen, unseen = ([str(value if value is not None else "") for value in values] for values in (train, test))
    counts = Counter(seen)
    levels = sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS]
    place = {level: number for number, level in enumerate(levels)}
    one_hot = np.eye(len(levels) + 1)
    return tuple(one_hot[[place.get(level, len(levels)) for level in values]] for values in (seen, unseen))  # type: ignore[return-value]


def _no_feature(name: str, values: pa.ChunkedArray, owners: Sequence[NDArray[np.int64]]) -> str | None:
    """Why a column is no feature."""
    if values.null_count == len(values):
        return "empty"
    if _are_row_numbers(name, values, owners):
        return "row numbers"
    if _is_number(values):
        return None
    if _is_category(values):
        return TEXTS if is_text(values) else None
    return str(values.type)


def _are_row_numbers(name: str, values: pa.ChunkedArray, owners: Sequence[NDArray[np.int64]]) -> bool:
    """Whether a column numbers the rows, or each owner's rows: of sorted samples, a row's number gives its label away.

    So they are by the names that pandas gives to an index, or by their values (:func:`_number_rows`).
    """
    import pyarrow.types as kinds

    if _INDEX.fullmatch(name):
        return True
    if not kinds.is_integer(values.type) or values.null_count:
        return False
    numbers = values.to_numpy()
    if len(np.unique(numbers)) <= MOST_LEVELS:  # a month, or whether a patient was treated in that visit, says more than a place
        owners = ()
    return any(_number_rows(numbers, one) for one in (np.zeros(len(numbers), dtype=np.int64), *owners))


def _number_rows(numbers: NDArray[np.integer[Any]], owners: NDArray[np.int64]) -> bool:
    """Whether whole numbers ``(N,)`` number the rows of each owner, in any order.

    So they do where each owner's are distinct, and either are all from 0 or 1 on, or are many and at least half of their range,
    as after a split.

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


def _is_number(values: pa.ChunkedArray) -> bool:
    import pyarrow.types as kinds

    kind = values.type
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind))


def _is_category(values: pa.ChunkedArray) -> bool:
    import pyarrow.types as kinds

    kind = values.type.value_type if kinds.is_dictionary(values.type) else values.type
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _numbers(values: pa.ChunkedArray, name: str, table: Table) -> NDArray[np.float64]:
    """``(N,)`` with NaN where a number is missing; long integers are rounded."""
    found: NDArray[np.float64] = values.cast("float64", safe=False).to_numpy().astype(np.float64)
    if (infinite := np.flatnonzero(np.isinf(found))).size:
        raise UsageError(f"{table.at(infinite[0])}: column {name!r} is {found[infinite[0]]}")
    return found
