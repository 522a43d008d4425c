"""Scores of rows by hand-made cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding, made_up_rows
from fedpriv.attacks.scoring.row_scores import in_order, match_rows, right_cells, score_rows, sure_rows, typical_row

TABLE = RowEncoding(
    (NumberColumn("age", 40.0, 10.0), NumberColumn("dose", 2.0, 0.5, gaps=True), CategoryColumn("ward", ("a", "b"), other=True))
)
TRUE = TABLE.encode([(40.0, 2.0, "a"), (60.0, None, "b"), (50.0, 3.0, None)])


def test_a_number_is_right_within_a_third_of_a_deviation() -> None:
    guesses = TABLE.encode([(43.1, 2.15, "a"), (63.3, 2.0, "b"), (50.0, None, None)])
    assert right_cells(guesses, TRUE, TABLE).tolist() == [[True, True, True], [False, False, True], [True, False, True]]
    both = TABLE.encode([(60.0, None, "a")])
    assert right_cells(both, TRUE[1:2], TABLE).tolist() == [[True, True, False]]


def test_scores_count_cells_and_whole_rows() -> None:
    scores = score_rows(TABLE.encode([(40.0, 2.0, "a"), (60.0, 1.0, "b"), (50.0, 3.0, "a")]), TRUE, TABLE)
    assert (scores.cells.successes, scores.cells.n) == (7, 9) and (scores.rows.successes, scores.rows.n) == (1, 3)
    assert {name: rate.successes for name, rate in scores.by_column.items()} == {"age": 3, "dose": 2, "ward": 2}
    assert scores.labels is None
    guessed = score_rows(TRUE, TRUE, TABLE, torch.tensor([1, 0, -1]), torch.tensor([1, 1, 1]))
    assert guessed.labels is not None and guessed.labels.successes == 1


def test_rows_are_matched_by_their_cells() -> None:
    order = torch.tensor([2, 0, 1])
    assert match_rows(TRUE[order], TRUE, TABLE).tolist() == [1, 2, 0]
    raw, index = in_order(torch.cat([TRUE[order], TRUE[order]]), torch.cat([TRUE, TRUE]), TABLE, messages=2)
    assert index.tolist() == [1, 2, 0, 4, 5, 3]
    torch.testing.assert_close(raw, torch.cat([TRUE, TRUE]))


def test_a_row_that_was_not_recovered_has_no_right_cell() -> None:
    nothing = torch.full((1, TABLE.width), torch.nan)
    assert not right_cells(nothing, TRUE[:1], TABLE).any()
    raw, index = in_order(TRUE[1:2], TRUE, TABLE, messages=1)
    assert index.tolist() == [-1, 0, -1] and raw.isnan().any(1).tolist() == [True, False, True]
    assert score_rows(raw, TRUE, TABLE).cells.successes == 3
    more = torch.cat([nothing, TRUE])
    assert in_order(more, TRUE, TABLE, messages=1)[1].tolist() == [1, 2, 3], "an attack may return more rows than there are"


def test_the_typical_row_has_means_and_modes() -> None:
    assert TABLE.decode(typical_row(TABLE)[None]) == [(40.0, 2.0, "a")]


def _rows(table: RowEncoding, count: int, seed: int) -> torch.Tensor:
    return made_up_rows(table, count, torch.Generator().manual_seed(seed))


def _whole(rows: torch.Tensor) -> torch.Tensor:
    """Numbers as a table of counts has them."""
    return rows.round()


def _determined(rows: torch.Tensor) -> torch.Tensor:
    """The second number is the first one, nearly."""
    return torch.cat([rows[:, :1], rows[:, :1] + 0.02 * rows[:, 1:2], rows[:, 2:]], 1)


@pytest.mark.parametrize(("numbers", "change"), [(0, None), (2, None), (13, None), (3, _whole), (2, _determined)])
def test_rows_that_are_right_by_chance_do_not_count(numbers: int, change: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    """Guesses are rows of the same table; 16 of them are matched, so that now and then one is right in every cell."""
    table = RowEncoding(
        (*(NumberColumn(f"n{k}") for k in range(numbers)), *(CategoryColumn(f"c{k}", ("a", "b")) for k in range(2)))
    )
    rows = [_rows(table, 16 if seed else 300, seed) for seed in range(201)]
    others, *drawn = rows if change is None else list(map(change, rows))
    whole = counted = 0
    for true, guesses in zip(drawn[::2], drawn[1::2], strict=True):
        shown, _ = in_order(guesses, true, table, messages=1)
        whole += bool((hits := right_cells(shown, true, table).all(1)).any())
        counted += bool(sure_rows(guesses, shown, true, others, table, 1).any()) and not hits.all()
    assert counted <= 4, "of 100, at a level of at most 2 %"
    assert whole > 50 or numbers == 13, "a share of rows alone would count them"


def test_a_row_that_chance_hardly_explains_counts() -> None:
    table = RowEncoding((*(NumberColumn(f"n{k}") for k in range(4)), CategoryColumn("c", ("a", "b"))))
    true, others = _rows(table, 16, 1), _rows(table, 300, 0)
    shown = _rows(table, 16, 2)
    shown[3] = true[3] + 1e-3
    assert sure_rows(shown, shown, true, others, table, 1).nonzero().flatten().tolist() == [3], "one exact row of 16"
    near = true + 0.25
    near[8:] = shown[8:]
    assert int(sure_rows(near, near, true, others, table, 1).sum()) == 8, "many rows within the tolerance"
    levels = RowEncoding(tuple(CategoryColumn(f"c{k}", tuple("abcde")) for k in range(6)))
    true, others = _rows(levels, 16, 1), _rows(levels, 300, 0)
    half = torch.cat([true[:8], _rows(levels, 8, 2)])
    assert sure_rows(half, half, true, others, levels, 1)[:8].all(), "rows of levels alone count by their number"
    assert sure_rows(true[:1], true[:1], true[:1], others, levels, 1).all(), "the only row"
