"""The columns of a data set as attackers know them."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.attacks.core import columns as known
from fedpriv.data.encoding import Column, NumberColumn


def row_encoding(columns: Sequence[Column]) -> known.RowEncoding | None:
    """The encoding of a table's rows, on which server and clients agreed; ``None`` without columns, as for arrays."""
    return known.RowEncoding(tuple(map(_known, columns))) if columns else None


def _known(column: Column) -> known.Column:
    if isinstance(column, NumberColumn):
        return known.NumberColumn(column.name, column.mean, column.std, column.gaps)
    return known.CategoryColumn(column.name, column.levels)
