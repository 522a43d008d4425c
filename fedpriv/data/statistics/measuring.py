"""Statistics of some training rows, such as a client's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.statistics.cells import ArrayCells, Cells, Indices, categories_in, numbers_in
from fedpriv.data.statistics.exact import LARGEST, PLACES, Moments, moments
from fedpriv.data.statistics.totals import Inquiry, Totals
from fedpriv.errors import UsageError

_IMAGES = 256
"""Images whose pixels are counted at a time."""


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training rows of one client.

    Attributes:
        held: their places ``(n,)`` among the training rows of the data set.
        cells: of the table; none: the samples are images.
        images: ``(N, C, H, W)`` uint8; ``None``: the samples are rows.
        labels: ``(N,)`` of all training rows.
        min_level: the number of rows that must have a level for it to be named.
    """

    held: Indices
    cells: Sequence[Cells]
    images: Tensor | None
    labels: Tensor
    min_level: int

    def levels(self, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The levels that enough of the rows have, by column, in alphabetical order.

        Raises:
            UsageError: a column is not there, or holds something else.
        """
        cells = {column.name: column for column in self.cells}
        counts = {name: categories_in(cells, name).counts(self.held) for name in columns}
        return {name: tuple(level for level, count in held.items() if count >= self.min_level) for name, held in counts.items()}

    def totals(self, inquiry: Inquiry) -> Totals:
        """The statistics that an inquiry asks for.

        Raises:
            UsageError: a column or the channels are not there, or hold something else; or a number is too large to be summed.
        """
        cells = {column.name: column for column in self.cells}
        numbers, levels = list[Moments](), list[tuple[int, ...]]()
        for name in inquiry.numbers:
            numbers.append(_moments(numbers_in(cells, name).train[self.held], name))
        numbers += self._channels(inquiry.channels)
        for name, asked in inquiry.levels:
            counts = categories_in(cells, name).counts(self.held)
            sent = [count if (count := counts.get(level, 0)) >= self.min_level else 0 for level in asked]
            levels.append((*sent, len(self.held) - sum(sent)))
        labels = self.labels.numpy()[self.held] if inquiry.classes else np.zeros(0, np.int64)
        classes = tuple(np.bincount(labels, minlength=inquiry.classes).tolist())
        return Totals(len(self.held), tuple(numbers), tuple(levels), classes)

    def _channels(self, channels: int) -> list[Moments]:
        """The moments of each channel of images, in whole pixel values, or of arrays."""
        if not channels:
            return []
        if self.images is not None:
            if channels != self.images.shape[1]:
                raise UsageError(f"statistics of {channels} channels of images that have {self.images.shape[1]}")
            counts = np.zeros((channels, 256), np.int64)
            for places in np.array_split(self.held, len(self.held) // _IMAGES + 1):
                images = self.images[places].numpy()
                counts += [np.bincount(images[:, channel].reshape(-1), minlength=256) for channel in range(channels)]
            return [_pixels(of_channel) for of_channel in counts]
        for column in self.cells:
            if isinstance(column, ArrayCells) and channels == column.train.shape[1]:
                parts = (column.train[self.held, channel].reshape(-1) for channel in range(channels))
                return [_moments(part.astype(np.float64), column.name) for part in parts]
        raise UsageError(f"statistics of {channels} channels, which the samples have not")


def _moments(numbers: NDArray[np.float64], name: str) -> Moments:
    """The moments of the numbers that are there."""
    there = numbers[~np.isnan(numbers)]
    if (wrong := there[np.abs(there) >= LARGEST]).size:
        raise UsageError(f"column {name!r} holds {wrong[0]:g}; numbers are below {LARGEST:.1e}, as float32 has them")
    return moments(there)


def _pixels(counts: NDArray[np.int64]) -> Moments:
    """The moments of pixels, by the count of each value of 0 to 255."""
    total, squares = (sum(value**power * count for value, count in enumerate(counts.tolist())) for power in (1, 2))
    return Moments(int(counts.sum()), total << PLACES, squares << 2 * PLACES)
