"""Cells as the numbers that a net takes, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedpriv.attacks.core.columns import CategoryColumn, Cell, NumberColumn, RowEncoding, made_up_rows
from fedpriv.attacks.lab.setting import EXAMPLE
from fedpriv.data import encoding as data

TABLE = RowEncoding(
    (
        NumberColumn("age", 40.0, 10.0, low=0.0, high=100.0),
        CategoryColumn("smoker", ("no", "yes")),
        NumberColumn("dose", 2.0, 0.5, gaps=True),
        CategoryColumn("ward", ("a", "b", "c"), other=False),
    )
)
CELLS: list[tuple[Cell, ...]] = [(55.0, "yes", None, "c"), (40.0, None, 3.0, "a")]
ROWS = [[1.5, 0, 1, 0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 2, 0, 1, 0, 0]]


def test_cells_are_encoded_and_decoded() -> None:
    rows = TABLE.encode(CELLS)
    assert rows.tolist() == ROWS and TABLE.width == 9
    assert TABLE.decode(rows) == CELLS
    assert TABLE.numbers.tolist() == [0, 4] and TABLE.gaps.tolist() == [5]


def test_the_encoding_is_that_of_the_data() -> None:
    """A table that the package for data encodes is decoded to its cells."""
    numbers, levels = np.array([3.0, np.nan, 5.0, 7.0]), ["x", "y", "x", "z"]
    number, category = data.NumberColumn("n", 5.0, 1.6, gaps=True), data.CategoryColumn("c", ("x", "y"))
    rows = torch.from_numpy(np.concatenate([number.encode(numbers), category.encode(levels)], 1))
    columns = (NumberColumn("n", number.mean, number.std, number.gaps), CategoryColumn("c", category.levels))
    cells = RowEncoding(columns).decode(rows)
    assert [row[1] for row in cells] == ["x", "y", "x", None]
    assert cells[1][0] is None and [row[0] for row in cells if row[0] is not None] == pytest.approx([3, 5, 7])


def test_decoding_takes_the_nearest_cells() -> None:
    near = torch.tensor(ROWS) + torch.tensor([0.4, 0.2, -0.3, 0.1, 0.0, -0.4, 0.4, 0.2, 0.1])
    (age, *_), second = TABLE.decode(near)
    assert age == pytest.approx(59) and second[1:] == (None, pytest.approx(3), "a")
    torch.testing.assert_close(TABLE.project(torch.tensor(ROWS)), torch.tensor(ROWS))
    assert TABLE.project(near)[0].tolist() == pytest.approx([1.9, 0, 1, 0, 0, 1, 0, 0, 1])
    assert TABLE.decode(torch.full((1, 9), torch.nan)) == [(None,) * 4]


def test_entries_that_no_cell_has_are_not_valid() -> None:
    rows = torch.tensor(ROWS).repeat(1, 1)
    assert TABLE.valid(rows, 0.0).all()
    rows[0, 0] = 6.5  # 105 years
    rows[1, 3], rows[1, 2] = 0.5, 0.5
    rows[1, 4] = math.inf
    wrong = ~TABLE.valid(rows, 0.01)
    assert wrong.nonzero().tolist() == [[0, 0], [1, 2], [1, 3], [1, 4]]


@pytest.mark.parametrize(("cell", "column"), [("x", 0), (None, 0), ("maybe", 1), (None, 3)])
def test_cells_that_do_not_fit_are_refused(cell: Cell, column: int) -> None:
    row = list(CELLS[0])
    row[column] = cell
    with pytest.raises(ValueError, match=TABLE.columns[column].name):
        TABLE.encode([row])


def test_rows_that_are_made_up_have_the_columns_means() -> None:
    rows = made_up_rows(EXAMPLE, 4000, torch.Generator().manual_seed(0))
    assert EXAMPLE.valid(rows, 0.0).all()
    plain = [place for place in EXAMPLE.numbers.tolist() if place + 1 not in EXAMPLE.gaps.tolist()]
    assert rows[:, plain].mean(0).abs().max() < 0.06 and (rows[:, plain].std(0) - 1).abs().max() < 0.05
    assert float(rows[:, EXAMPLE.gaps].mean()) == pytest.approx(0.1, abs=0.02)
