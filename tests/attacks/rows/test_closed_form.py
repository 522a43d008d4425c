"""The closed form against the rows that made the messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import SharedLinear
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.rows.closed_form import ClosedForm
from fedpriv.attacks.rows.span import rows_in_span
from fedpriv.attacks.scoring.row_scores import in_order, score_rows
from tests.attacks.sent import each, messages_of, noised

NUMBERS = RowEncoding(tuple(NumberColumn(f"n{i}") for i in range(20)))


def recovered(setting: RowSetting, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The rows, in the order of the true ones, and the true ones."""
    observed, rows, _ = messages_of(setting, seed)
    return in_order(ClosedForm().run(observed, seed).raw, rows, setting.encoding, len(observed))[0], rows


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_single_row_is_exact(smooth: bool, steps: int) -> None:
    observed, rows, labels = messages_of(RowSetting(smooth=smooth, steps=steps))
    result = ClosedForm().run(observed)
    torch.testing.assert_close(result.raw, rows, atol=1e-3 if steps else 1e-4, rtol=0)
    assert result.labels.tolist() == labels.tolist() and (result.loss == 0).all()
    assert result.cells[0][4:] == result.encoding.decode(rows)[0][4:]


@pytest.mark.parametrize("smooth", [False, True])
def test_a_batch_is_exact_by_its_categories(smooth: bool) -> None:
    raw, rows = recovered(RowSetting(smooth=smooth, rows=8, per_message=8))
    torch.testing.assert_close(raw, rows, atol=1e-2, rtol=0)


def test_a_batch_of_numbers_is_exact_behind_relu() -> None:
    """No category tells rows from mixtures, so that only the sparse columns of the gradient remain."""
    setting = RowSetting(NUMBERS, classes=4, rows=4, per_message=4)
    raw, rows = recovered(setting)
    torch.testing.assert_close(raw, rows, atol=1e-2, rtol=0)
    why = ClosedForm.harder(messages_of(replace(setting, smooth=True))[0][0])
    assert why is not None and "no ReLU" in why and ClosedForm.harder(messages_of(setting)[0][0]) is None


def test_repeated_rows_are_counted() -> None:
    setting = RowSetting(rows=6, per_message=6)
    rows, labels = setting.truth(0)
    rows[3], rows[5], labels[3], labels[5] = rows[2], rows[2], labels[2], labels[2]
    (message,) = setting.observations(rows, labels, 0)
    result = ClosedForm().run([message])
    raw, index = in_order(result.raw, rows, setting.encoding, 1)
    scores = score_rows(raw, rows, setting.encoding)
    assert scores.rows.successes == 6 and result.labels.sum() == labels.sum()
    assert sorted(result.labels[index].tolist()) == sorted(labels.tolist())
    hidden = {name: tensor for name, tensor in message.weights.items() if not name.startswith("top.")}
    once = ClosedForm().run([replace(message, weights=hidden)])
    raw, _ = in_order(once.raw, rows, setting.encoding, 1)
    assert score_rows(raw, rows, setting.encoding).rows.successes == 4 and (once.labels == -1).all()


def test_the_rows_are_told_from_their_sums_and_differences() -> None:
    """Of 16 rows with few levels, some sums of rows are one-hot, too; only the rows' gradients mix to the message."""
    raw, rows = recovered(RowSetting(rows=16, per_message=16), seed=1)
    torch.testing.assert_close(raw, rows, atol=1e-2, rtol=0)


def test_an_unknown_number_of_rows_gives_those_that_are_exact() -> None:
    (message,), rows, _ = messages_of(RowSetting(rows=6, per_message=6))
    message = replace(message, num_examples=None)
    assert ClosedForm().run([message]).raw.shape == rows.shape
    nothing = ClosedForm().run([noised(each(message, torch.zeros_like), 1.0)])
    assert len(nothing.raw) == 0 and nothing.loss.tolist() == [1]


def test_messages_that_it_cannot_read_are_refused() -> None:
    (message, *_), _, _ = messages_of(RowSetting())
    with pytest.raises(Inapplicable, match="not known"):
        ClosedForm().run([replace(message, encoding=None)])
    zero = each(message, torch.zeros_like)
    assert ClosedForm().run([zero]).raw.isnan().all() and "zero" in (ClosedForm.empty(zero) or "")


def test_the_span_holds_the_rows_of_a_gradient() -> None:
    """``D^T [X, 1]`` for random ``D``: no other row with these categories lies in its span."""
    torch.manual_seed(0)
    table = RowEncoding(
        (NumberColumn("n", gaps=True), CategoryColumn("a", tuple("abcdefgh")), CategoryColumn("b", tuple("xyz"), False))
    )
    rows = table.encode([(1.5, "a", "x"), (None, "c", "y"), (-0.5, None, "x"), (0.25, "f", "z")])
    signal = torch.randn(4, 30)
    layer = SharedLinear("first", signal.T @ rows, signal.sum(0))
    spanned = rows_in_span(layer, table)
    torch.testing.assert_close(in_order(spanned, rows, table, 1)[0], rows, atol=1e-4, rtol=0)
    few = RowEncoding((*NUMBERS.columns, CategoryColumn("a", ("x", "y"), False)))
    rows = torch.cat([torch.randn(4, 20), torch.eye(2).repeat(2, 1)], 1)
    with pytest.raises(Inapplicable, match="too few levels"):
        rows_in_span(SharedLinear("first", signal.T @ rows, signal.sum(0)), few)
