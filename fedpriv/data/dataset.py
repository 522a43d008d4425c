"""Data sets: loaded, opened without reading samples, and as named sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.encoding import Column, Encoding, NumberColumn
from fedpriv.data.statistics.cells import (
    ArrayCells,
    CategoryCells,
    Cells,
    Indices,
    NumberCells,
    bytes_of_rows,
    encoded_cells,
    unseen_levels,
)
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.data.user_data.owners import Owners

Texts = tuple[str, ...]
Values = tuple[NDArray[Any], NDArray[Any] | None]
"""A column's values in the training and in the test rows; ``None``: the test rows lack the column."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples that are an image, a text, both, or a row of numbers, with labels ``(N,)``; training and test.

    Attributes:
        train_labels, test_labels: the numbers of classes, int64; of a regression numbers, float64 in their own unit until the
            samples are encoded, then standardised float32.
        classes: none of a regression.
        target: of a regression, the column of the labels; before they are encoded, its mean is 0 and its deviation 1.
        images: decoded, each ``(N, C, H, W)`` uint8; ``None``: the samples have none.
        texts: one for each sample; ``None``: the samples have none.
        cells: the columns of a table, or arrays, before they are encoded.
        vectors: training and test rows ``(N, F)`` float32 of a table, or arrays ``(N, C, ...)``; ``None``: the samples are
            neither, or are not encoded yet.
        columns: of the rows of a table, once they are encoded.
        mean, std: per channel, of images on the [0, 1] scale, or of encoded arrays; empty: not known yet.
        suggests: values for config keys that the config leaves open.
        owners: the client of each sample; ``None``: the data do not say.
        notes: what the user should know of how the samples were read, a line each.
        hash_as_read: the :attr:`hash` of rows before they were encoded; ``None``: the samples are no encoded rows.
    """

    name: str
    train_labels: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    default_model: str
    images: tuple[Tensor, Tensor] | None = None
    texts: tuple[Texts, Texts] | None = None
    cells: tuple[Cells, ...] = ()
    vectors: tuple[Tensor, Tensor] | None = None
    columns: tuple[Column, ...] = ()
    target: NumberColumn | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    suggests: Mapping[str, Any] = field(default_factory=dict)
    owners: Owners | None = None
    notes: tuple[str, ...] = ()
    hash_as_read: str | None = None

    @property
    def is_encoded(self) -> bool:
        """Whether the numbers and levels are known by which samples are scaled and coded."""
        return not self.cells and (self.images is None or bool(self.mean))

    def with_classes(self, classes: tuple[str, ...]) -> Dataset:
        """The data set with further classes, without samples of these.

        Raises:
            UsageError: ``classes`` lacks one of its classes.
        """
        if classes == self.classes:
            return self
        if strange := [name for name in self.classes if name not in classes]:
            raise UsageError(f"the class {strange[0]!r} of {self.name} is none of the run's: {', '.join(classes[:5])}")
        numbers = torch.tensor([classes.index(name) for name in self.classes])
        return replace(self, classes=classes, train_labels=numbers[self.train_labels], test_labels=numbers[self.test_labels])

    @property
    def strata(self) -> tuple[Tensor, Tensor]:
        """Training and test labels for partitions, ``(N,)`` int64: the classes, or zeros where labels are numbers."""
        if self.target is None:
            return self.train_labels, self.test_labels
        return torch.zeros(len(self.train_labels), dtype=torch.int64), torch.zeros(len(self.test_labels), dtype=torch.int64)

    @property
    def kind(self) -> SampleKind:
        """The kind of the samples, which says what statistics they need."""
        if self.cells:
            return SampleKind.of_cells(self.cells, self.target)
        return SampleKind((), self.train_images.shape[1], images=True)

    def training_rows(self, held: Indices, min_level: int) -> TrainingRows:
        """Training rows whose statistics can be asked for; arguments as of :class:`TrainingRows`."""
        cells = self.cells
        if self.target is not None:
            cells = (*cells, NumberCells(self.target.name, self.train_labels.numpy(), self.test_labels.numpy()))
        return TrainingRows(held, cells, self.images and self.images[0], self.train_labels, min_level)

    def encoded(self, encoding: Encoding, trained: Indices) -> Dataset:
        """The data set with samples that are scaled and coded.

        Args:
            trained: the training rows of all clients; a line is added on levels that only test rows have.

        Raises:
            UsageError: the encoding is of other columns.
        """
        if not self.cells:
            return replace(self, mean=encoding.mean, std=encoding.std)
        if isinstance(arrays := self.cells[0], ArrayCells):
            shape = (1, -1, *[1] * (arrays.train.ndim - 2))
            mean, std = (np.array(numbers).reshape(shape) for numbers in (encoding.mean, encoding.std))
            parts = [((values - mean) / std).astype(np.float32) for values in (arrays.train, arrays.test)]
        else:
            parts = [encoded_cells(self.cells, encoding.columns, split) for split in ("train", "test")]
        return replace(
            self,
            hash_as_read=self.hash,
            cells=(),
            vectors=(torch.from_numpy(parts[0]), torch.from_numpy(parts[1])),
            columns=encoding.columns,
            **self._with_target(encoding.target),
            mean=encoding.mean,
            std=encoding.std,
            notes=(*self.notes, *unseen_levels(self.cells, trained)),
        )

    def _with_target(self, target: NumberColumn | None) -> dict[str, Any]:
        """The fields of a regression whose labels are standardised.

        Raises:
            UsageError: the encoding is of classes, and the labels are numbers, or the other way round.
        """
        if (target and target.name) != (self.target and self.target.name):
            raise UsageError(f"{self.name}: the encoding is of other labels; --set data.task says what they are")
        if target is None:
            return {}
        labels = {"train_labels": self.train_labels, "test_labels": self.test_labels}
        scaled = {split: torch.from_numpy(target.encode(of_split.numpy())[:, 0]).float() for split, of_split in labels.items()}
        return {"target": target, **scaled}

    @property
    def train_images(self) -> Tensor:
        """``(N, C, H, W)`` uint8; :class:`UsageError` where the samples are no images."""
        return self._images()[0]

    @property
    def test_images(self) -> Tensor:
        """``(N_test, C, H, W)`` uint8; :class:`UsageError` where the samples are no images."""
        return self._images()[1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """``(C, H, W)`` of images, ``(F,)`` of rows, or the shape of arrays; :class:`UsageError` where the samples are texts, or
        rows that are not encoded."""
        if self.vectors is not None:
            return tuple(self.vectors[0].shape[1:])
        if self.cells and isinstance(arrays := self.cells[0], ArrayCells):
            return tuple(arrays.train.shape[1:])
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of what the samples are: pixels, texts or rows, labels and classes, of training and test.

        Pixels are those that nets are trained on, so it also depends on how images were decoded and resized. Rows are hashed as
        they were read, as statistics and levels by which they are encoded depend on the partition. Takes a second for 1 GB where
        the processor knows SHA.
        """
        if self.hash_as_read is not None:
            return self.hash_as_read
        digest = hashlib.sha256(repr(self.classes if self.target is None else self.target).encode())
        for tensor in (self.train_labels, self.test_labels, *(self.images or ()), *(self.vectors or ())):
            digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().data)
        for column in self.cells:
            digest.update(repr((column.name, column.levels if isinstance(column, CategoryCells) else "")).encode())
            for values in (column.train, column.test):
                digest.update(repr((str(values.dtype), values.shape)).encode())
                digest.update(np.ascontiguousarray(values).data)
        for texts in self.texts or ():
            digest.update(json.dumps(texts).encode())
        return digest.hexdigest()

    def repeated(self) -> int:
        """How many test samples are the same as a training sample, whatever their labels."""
        parts: list[tuple[Any, Any]] = [part for part in (self.images, self.vectors, self.texts) if part is not None]
        if self.cells:
            parts = [(bytes_of_rows(self.cells, "train"), bytes_of_rows(self.cells, "test"))]

        def digests(side: int) -> Iterator[bytes]:
            columns = [part[side] for part in parts]
            arrays = [column.numpy() if isinstance(column, Tensor) else column for column in columns]
            for row in zip(*arrays, strict=True):
                digest = hashlib.blake2b(digest_size=16)
                for part in row:
                    digest.update(part.encode() if isinstance(part, str) else part if isinstance(part, bytes) else part.tobytes())
                yield digest.digest()

        known = set(digests(0))
        return sum(digest in known for digest in digests(1))

    def check_classes(self) -> None:
        """Check that there are two classes or more.

        Raises:
            UsageError: all training samples have one label.
        """
        held = np.unique(self.train_labels.numpy())
        if len(held) == 1 and self.target is None:
            raise UsageError(
                f"all {len(self.train_labels):,} training samples of {self.name} have the label {self.classes[held[0]]!r}; "
                "a classifier needs two classes or more"
            )

    def _images(self) -> tuple[Tensor, Tensor]:
        if self.images is None:
            what = "rows of a table" if self.cells or self.vectors is not None else "texts"
            raise UsageError(f"{self.name} holds {what}, but this needs images")
        return self.images


@dataclass(frozen=True, eq=False)
class Opened:
    """A data set whose labels have been read, but not its samples.

    Attributes:
        target: as of :class:`Dataset`; the labels are then float64.
        images: a function of the side in pixels (``None``: unchanged) that returns decoded training and test images.
        texts: a function that returns training and test texts.
        cells: a function that returns the columns of a table, or arrays. Its argument says whether to include columns that these
            rows alone would leave out.
        column: a function of a column's name that returns its values in the training and the test rows; ``None`` in place of the
            latter: the test rows have no such column.
        owners: the client of each sample; ``None``: the data do not say.
        notes: what the user should know of how the samples were read, a line each; complete once they were read.
    """

    train_labels: NDArray[Any]
    test_labels: NDArray[Any]
    classes: tuple[str, ...]
    images: Callable[[int | None], tuple[Tensor, Tensor]] | None = None
    texts: Callable[[], tuple[Texts, Texts]] | None = None
    suggests: Mapping[str, Any] = field(default_factory=dict)
    cells: Callable[[bool], tuple[Cells, ...]] | None = None
    column: Callable[[str], Values] | None = None
    owners: Owners | None = None
    notes: list[str] = field(default_factory=list)
    target: NumberColumn | None = None

    @property
    def strata(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Training and test labels as partitions see them; as of :class:`Dataset`."""
        if self.target is None:
            return self.train_labels, self.test_labels
        return np.zeros(len(self.train_labels), np.int64), np.zeros(len(self.test_labels), np.int64)


@dataclass(frozen=True)
class Source:
    """One data set by name. Another package adds its own as an entry point of the group ``fedpriv.data``.

    Attributes:
        open: data folder (or ``None``) -> the opened data set.
        mean, std: per channel on the [0, 1] scale; ``None``: measured on the training images.
        default_model: a name of ``fedpriv models``; ``None``: depends on the kind of samples.
        suggests: as :attr:`Dataset.suggests`.
    """

    name: str
    about: str
    open: Callable[[Path | None], Opened]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    default_model: str | None = None
    suggests: Mapping[str, Any] = field(default_factory=dict)
