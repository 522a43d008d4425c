"""The statistics that a client sends of its training rows, and their sum over the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.statistics.exact import SQUARE_WORDS, SUM_WORDS, WORD, Moments, from_words, to_words
from fedpriv.wire import Form, Refused, statistic

ROWS, PRESENT, SUMS, SQUARES = map(statistic, ("rows", "present", "sums", "squares"))
LEVELS, CLASSES = map(statistic, ("levels", "classes"))
_WORD = Form((), torch.int64, least=-(2.0**WORD), most=2.0**WORD)
_COUNT = Form((), torch.int64, least=0, most=2.0**31)


@dataclass(frozen=True)
class Inquiry:
    """What a server asks of every client.

    Attributes:
        numbers: the columns whose numbers are summed.
        levels: the columns whose levels are counted, with these levels.
        channels: of images or arrays, whose numbers are summed channel by channel.
        classes: number of the classes whose samples are counted; 0: they are not.
    """

    numbers: tuple[str, ...] = ()
    levels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    channels: int = 0
    classes: int = 0

    @property
    def summed(self) -> int:
        """Number of the columns and channels that are summed."""
        return len(self.numbers) + self.channels

    @property
    def forms(self) -> dict[str, Form]:
        """The form of a client's statistics, by name."""
        forms = {ROWS: _COUNT}
        if self.summed:
            forms |= {PRESENT: _sized(_COUNT, self.summed)}
            forms |= {SUMS: _sized(_WORD, self.summed, SUM_WORDS), SQUARES: _sized(_WORD, self.summed, SQUARE_WORDS)}
        if self.levels:
            forms[LEVELS] = _sized(_COUNT, sum(len(levels) + 1 for _, levels in self.levels))
        if self.classes:
            forms[CLASSES] = _sized(_COUNT, self.classes)
        return forms


@dataclass(frozen=True)
class Totals:
    """Statistics of some rows, in the order of an inquiry.

    Attributes:
        moments: of each column of numbers, or channel.
        levels: of each column of categories, the number of rows with each level, and with any other.
        classes: the number of samples of each class.
    """

    rows: int
    moments: tuple[Moments, ...] = ()
    levels: tuple[tuple[int, ...], ...] = ()
    classes: tuple[int, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a message; those of several clients are added to sum their totals."""
        tensors = {ROWS: torch.tensor(self.rows)}
        if self.moments:
            tensors[PRESENT] = torch.tensor([column.count for column in self.moments])
            tensors[SUMS] = torch.tensor([to_words(column.total, SUM_WORDS) for column in self.moments])
            tensors[SQUARES] = torch.tensor([to_words(column.squares, SQUARE_WORDS) for column in self.moments])
        if self.levels:
            tensors[LEVELS] = torch.tensor([count for column in self.levels for count in column])
        if self.classes:
            tensors[CLASSES] = torch.tensor(self.classes)
        return tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], inquiry: Inquiry) -> Totals:
        """The inverse of :meth:`tensors`.

        Raises:
            Refused: they cannot be the statistics of any rows.
        """
        rows, moments, levels = int(tensors[ROWS]), list[Moments](), list[tuple[int, ...]]()
        if inquiry.summed:
            columns = zip(*(tensors[name].tolist() for name in (PRESENT, SUMS, SQUARES)), strict=True)
            moments = [Moments(count, from_words(total), from_words(squares)) for count, total, squares in columns]
        counts = iter(tensors[LEVELS].tolist() if inquiry.levels else ())
        for _, names in inquiry.levels:
            levels.append(tuple(next(counts) for _ in range(len(names) + 1)))
        classes = tuple(tensors[CLASSES].tolist()) if inquiry.classes else ()
        if not inquiry.channels and any(column.count > rows for column in moments):
            raise Refused("its statistics count more numbers than rows")
        if not all(column.possible for column in moments):
            raise Refused("its sums of squares are too small for its sums")
        if any(sum(column) != rows for column in levels) or (classes and sum(classes) != rows):
            raise Refused("its counts do not add up to its rows")
        return cls(rows, tuple(moments), tuple(levels), classes)


def added(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sum of the tensors of several clients."""
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


def as_row(tensors: Mapping[str, Tensor]) -> NDArray[np.int64]:
    """The numbers of a message as one row, in the order of the names, as secure sums add them."""
    return np.concatenate([tensors[name].numpy().reshape(-1) for name in sorted(tensors)])


def from_row(row: NDArray[np.int64], forms: Mapping[str, Form]) -> dict[str, Tensor]:
    """The inverse of :func:`as_row`."""
    tensors, start = dict[str, Tensor](), 0
    for name in sorted(forms):
        shape = [size for size in forms[name].shape if isinstance(size, int)]
        size = int(np.prod(shape, dtype=np.int64))
        tensors[name], start = torch.from_numpy(row[start : start + size].reshape(shape).copy()), start + size
    return tensors


def _sized(form: Form, *shape: int) -> Form:
    return Form(shape, form.dtype, form.least, form.most)
