"""The uploads of a round whose K x p matrix would take too much memory: columns are copied from the messages as they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import Upload

PIECE = 2**24
"""Entries that are copied at a time: 64 MiB in float32."""


class UploadedRows:
    """The uploads ``(K, p)`` of a round, of which ``rows[:, start:stop]`` is a tensor ``(K, stop - start)``, not to be changed.

    Args:
        uploads: which all hold the whole ``space``.
        like: a tensor of the dtype and on the device of those that are read.
    """

    def __init__(self, uploads: Sequence[Upload], space: ParameterSpace, like: Tensor) -> None:
        self._uploads, self._entries, self._starts = uploads, space.entries, [entry.start for entry in space.entries]
        self.shape = (len(uploads), space.size)
        self.dtype, self.device = like.dtype, like.device
        self._piece, self._from = torch.empty(0), slice(0, 0)

    def __len__(self) -> int:
        return len(self._uploads)

    @property
    def width(self) -> int:
        """Columns of a piece, which are copied together."""
        return max(1, PIECE // len(self))

    def __getitem__(self, where: tuple[slice, slice]) -> Tensor:
        start, stop, _ = where[1].indices(self.shape[1])
        if not self._from.start <= start <= stop <= self._from.stop:
            self._from = slice(start, max(stop, min(start + self.width, self.shape[1])))
            self._piece = self._read(self._from)
        return self._piece[:, start - self._from.start : stop - self._from.start]

    def pieces(self, part: slice) -> Iterator[slice]:
        """The columns of a part, in pieces."""
        for start in range(part.start, part.stop, self.width):
            yield slice(start, min(start + self.width, part.stop))

    def _read(self, part: slice) -> Tensor:
        block = torch.empty(len(self), part.stop - part.start, dtype=self.dtype)
        first = bisect_right(self._starts, part.start) - 1
        for entry in self._entries[first:]:
            if entry.start >= part.stop:
                break
            start, stop = max(part.start, entry.start), min(part.stop, entry.stop)
            of_entry, of_block = slice(start - entry.start, stop - entry.start), slice(start - part.start, stop - part.start)
            for row, upload in zip(block, self._uploads, strict=True):
                row[of_block] = upload.part(entry.name, of_entry)
        return block.to(self.device)


Rows = Tensor | UploadedRows
"""The uploads of a round ``(K, p)``, for functions that read them by columns."""


def pieces(rows: Rows, part: slice) -> Iterator[slice]:
    """The columns of a part: all at once from a matrix, else in pieces."""
    if isinstance(rows, Tensor):
        yield part
    else:
        yield from rows.pieces(part)
