"""Makes data sets of tables: labels are read at once, samples on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.config import LabelKind
from fedpriv.data.dataset import Opened, Texts, Values
from fedpriv.data.encoding import NumberColumn
from fedpriv.data.labels import look_like_numbers, read_labels, read_numbers, spellings
from fedpriv.data.statistics.cells import Cells
from fedpriv.data.subsets import at_most, hold_out
from fedpriv.data.tables.columns import Columns
from fedpriv.data.tables.files import called
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.data.tables.decoding import Mode
    from fedpriv.data.tables.files import Table


_MISSING = ("na", "n/a", "nan", "null")
"""How programs write a missing value, which in a column of texts is a text."""


@dataclass(frozen=True)
class SampleChoice:
    """The rows of a table that are used.

    Attributes:
        keep: names of the classes that are kept, in their new order; empty: all.
        at_most: largest number of samples kept per class, a fixed random choice.
        fraction: share held out of each class for testing where there is only one table.
    """

    keep: tuple[str, ...] = ()
    at_most: int | None = None
    fraction: float = 0.2


def assemble(
    name: str,
    tables: list[Table],
    columns: Columns,
    mode: Mode | None = None,
    choice: SampleChoice | None = None,
    task: LabelKind | None = None,
) -> Opened:
    """A data set of two tables (training and test), or of one, which is divided class by class, or client by client.

    Args:
        mode: grey or colour; ``None``: grey where all images are.
        task: what the labels are; ``None``: classes, or numbers where a table's labels look so.

    Raises:
        UsageError: the test table lacks a column, nothing is left, a label is missing or invalid, or a text is empty.
    """
    from fedpriv.data.tables.joined import Joined
    from fedpriv.data.user_data.owners import Owners, column_values

    choice = choice or SampleChoice()
    _check_test_columns(tables, columns)
    labels, classes, target, read = _labels(tables, columns, task)
    notes = [*columns.notes, *read]
    if target is not None:
        columns = replace(columns, numbers=tuple(name for name in columns.numbers if name != target.name))  # it has bounds, too
    kept = [np.arange(len(values)) for values in labels]
    if choice.keep:
        if missing := [cls for cls in choice.keep if cls not in classes]:
            raise UsageError(f"{tables[0].origin} has no class {missing[0]!r} in {called(tables[0], columns.label)}")
        new_id = np.full(len(classes), -1)
        new_id[[classes.index(cls) for cls in choice.keep]] = np.arange(len(choice.keep))
        labels, classes = [new_id[values] for values in labels], choice.keep
        kept = [np.flatnonzero(values >= 0) for values in labels]
    notes += spellings(classes, called(tables[0], columns.label), "classes")
    strata = [values.astype(np.int64) if target is None else np.zeros(len(values), np.int64) for values in labels]
    if choice.at_most is not None:
        kept[0] = kept[0][at_most(strata[0][kept[0]], choice.at_most)]
    if target is None and len(tables) == 2 and (alone := np.setdiff1d(labels[1][kept[1]], labels[0][kept[0]])).size:
        names = ", ".join(classes[number] for number in alone[:5])
        notes.append(f"classes of test samples that no training sample has, so that no client can learn them: {names}")
    joined = [table for table in tables if isinstance(table, Joined)]
    owners = [table.owners() for table in joined]
    if len(tables) == 1:
        train, test = hold_out((owners[0] if owners else strata[0])[kept[0]], choice.fraction)
        tables, labels, owners, kept = tables * 2, labels * 2, owners * 2, [kept[0][train], kept[0][test]]
    for table, rows, what in zip(tables, kept, ("training", "test"), strict=True):
        if not len(rows):
            raise UsageError(f"{table.origin} leaves no {what} samples")
    parts = list(zip(tables, kept, strict=True))

    def images(side: int | None) -> tuple[Tensor, Tensor]:
        from fedpriv.data.tables import decoding
        from fedpriv.untrusted.cache import cache_folder

        assert columns.image is not None
        cache = cache_folder() / f"{name}-{decoding.cache_key(parts, columns.image, mode, side)}.safetensors"
        cached = decoding.read_cache(cache)
        if cached is None:
            common = mode or decoding.common_mode(parts, columns.image)
            try:
                train, test = (decoding.decode(table, columns.image, rows, common, side) for table, rows in parts)
                if train.shape[1:] != test.shape[1:]:
                    raise decoding.MixedSizes
                cached = {"train": train, "test": test}
            except decoding.MixedSizes:
                sizes = decoding.sizes(parts, columns.image)
                together = decoding.common_side(sizes)
                train, test = (decoding.decode(table, columns.image, rows, common, together) for table, rows in parts)
                cached = {"train": train, "test": test, "sizes": torch.from_numpy(np.unique(sizes, axis=0))}
            decoding.write_cache(cache, cached)
        if "sizes" in cached:
            low, high, square = cached["sizes"].amin(0).tolist(), cached["sizes"].amax(0).tolist(), cached["train"].shape[-1]
            notes.append(
                f"images of {len(cached['sizes'])} sizes, {low[0]} to {high[0]} pixels wide and {low[1]} to {high[1]} high, are "
                f"resized to {square} x {square}; --set data.image_size=N sets another side"
            )
        return cached["train"], cached["test"]

    def texts() -> tuple[Texts, Texts]:
        assert columns.text is not None
        train, test = (_texts(table, columns.text, rows) for table, rows in parts)
        return train, test

    def cells(every: bool) -> tuple[Cells, ...]:
        from fedpriv.data.user_data.vectors import read_cells

        return read_cells(parts[0], parts[1], columns, every)

    def column(name: str) -> Values:
        if name not in tables[0].features:
            raise UsageError(f"{tables[0].origin} has no column {name!r}; its columns are: {', '.join(tables[0].features)}")
        owners = [
            column_values(table.column(name).take(rows).to_pylist(), rows, name, table) if name in table.features else None
            for table, rows in parts
        ]
        assert owners[0] is not None
        clients = np.unique(owners[0]).tolist()
        where = f"column {name!r}"
        notes.extend((*_like_missing(clients, where, "client", "client"), *spellings(clients, where, "clients")))
        return owners[0], owners[1]

    return Opened(
        labels[0][kept[0]],
        labels[1][kept[1]],
        classes,
        images if columns.image is not None else None,
        texts if columns.text is not None else None,
        cells=cells if columns.features else None,
        column=column,
        owners=Owners(joined[0].names, owners[0][kept[0]], owners[1][kept[1]]) if joined else None,
        notes=notes,
        suggests={} if target is None else {"data.partition.name": "iid"},
        target=target,
    )


class _Labels(NamedTuple):
    """The labels of each table ``(N,)``, the classes or the column of the numbers, and lines on how they were read."""

    values: list[NDArray[Any]]
    classes: tuple[str, ...]
    target: NumberColumn | None
    notes: list[str]


def _labels(tables: list[Table], columns: Columns, task: LabelKind | None) -> _Labels:
    """The labels as class ids, or as numbers where the config says so, or a table's labels look so."""
    import datasets

    column, where, notes = columns.label, called(tables[0], columns.label), list[str]()
    if _are_numbers(tables, columns, task):
        numbers, unit = read_numbers(tables, column)
        if task is None:
            notes.append(
                f"the labels in {where} are numbers, {len(np.unique(numbers[0])):,} different ones: a regression "
                "predicts them (data.task=classification makes each of them a class)"
            )
        return _Labels([*numbers], (), NumberColumn(column, 0.0, 1.0, unit=unit or None), notes)
    labels, classes = read_labels(tables, column)
    if not isinstance(tables[0].features[column], datasets.ClassLabel):
        if unused := len(classes) - len(np.unique(np.concatenate(labels))):
            which = f"{unused} of the numbers from 0 to {classes[-1]} do not occur, and their classes are empty"
            notes.append(f"the labels in {where}: {which}; names in place of numbers leave no gaps")
        notes += _like_missing(classes, where, "class", "label")
    return _Labels([*labels], classes, None, notes)


def _are_numbers(tables: Sequence[Table], columns: Columns, task: LabelKind | None) -> bool:
    """Whether labels are numbers to predict, as the config says, or as a table's labels look.

    Raises:
        UsageError: they should be, and the samples are images or texts.
    """
    if task == "regression" and not columns.features:
        what = "images" if columns.image is not None else "texts"
        raise UsageError(f"data.task regression is for rows of a table, and {tables[0].origin} holds {what}")
    return task == "regression" or (task is None and bool(columns.features) and look_like_numbers(tables[0], columns.label))


def _check_test_columns(tables: Sequence[Table], columns: Columns) -> None:
    """Refuse a test table without a column that is read; the column of the clients is none of these, and may be missing."""
    for table in tables[1:]:
        for name in columns.read:
            if name not in table.features:
                there = f"its columns are: {', '.join(table.features)}"
                hint = "; leave out a test split that has no labels" if name == columns.label else ""
                raise UsageError(f"{table.origin} lacks the column {name!r} of {tables[0].origin}; {there}{hint}")


def _like_missing(values: Sequence[Any], where: str, read_as: str, missing: str) -> Iterator[str]:
    """A line on values that look like a missing one, if there are any."""
    if odd := [value for value in values if str(value).strip().lower() in _MISSING]:
        reading = f"{where}: {odd[0]!r} is read as a {read_as} of that name"
        yield f"{reading}; leave out these rows if their {missing} is missing"


def _texts(table: Table, column: str, rows: NDArray[np.int64]) -> Texts:
    values = [str(value or "").strip() for value in table.column(column).take(rows).to_pylist()]
    if "" in values:
        raise UsageError(f"{table.at(rows[values.index('')])}: column {column!r} is empty; remove the row or write what it says")
    return tuple(values)
