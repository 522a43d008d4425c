"""The uploads of a round whose matrix K x p would exceed memory: columns are read from the messages when they are needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import Upload

PIECE = 2**24
"""Entries that are read at a time: 64 MiB in float32."""


class UploadedRows:
    """The uploads of a round ``(K, p)``; ``rows[:, start:stop]`` is a tensor ``(K, stop - start)``, which must not be changed.

    Args:
        uploads: the uploads; each contains all tensors of ``space``.
        like: a tensor with the dtype and device of the result.
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
        """Number of columns that are read together."""
        return max(1, PIECE // len(self))

    def __getitem__(self, where: tuple[slice, slice]) -> Tensor:
        start, stop, _ = where[1].indices(self.shape[1])
        if not self._from.start <= start <= stop <= self._from.stop:
            self._from = slice(start, max(stop, min(start + self.width, self.shape[1])))
            self._piece = self._read(self._from)
        return self._piece[:, start - self._from.start : stop - self._from.start]

    def pieces(self, part: slice) -> Iterator[slice]:
        """Cut columns into pieces that are read together."""
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
    """Cut columns into pieces that are read together; those of a matrix are one piece."""
    if isinstance(rows, Tensor):
        yield part
    else:
        yield from rows.pieces(part)
