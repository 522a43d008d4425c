"""SimAgg and FedAtt against loops over tensors, and at the edges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpriv.aggregation.columns import parameter_groups, squared_distances
from fedpriv.aggregation.fedatt import attention
from fedpriv.aggregation.simagg import distances_from_mean, weights
from tests.aggregation.rounds import TWO_LAYERS, doubles, merge, space_of, uploads
from tests.oracles import merging

W = doubles([1, 2, 2, 0, 3, 4])
ROWS = doubles([[1.5, 2, 1.5, 0.5, 3, 4], [0, 2, 3, -1, 4, 3], [1, 2.5, 2, 0.5, 2.5, 4.5]])
GROUPS = parameter_groups(TWO_LAYERS, "array")
WITH_BUFFER = space_of(("encoder.fc.weight", (2, 2), "weight"), ("encoder.norm.running_var", (2,), "buffer"))

rounds = st.integers(1, 5).flatmap(
    lambda k: st.tuples(
        st.lists(st.lists(st.floats(-3, 3), min_size=6, max_size=6), min_size=k, max_size=k),
        st.lists(st.integers(1, 1000), min_size=k, max_size=k),
    )
)


def states(rows: Tensor) -> list[merging.State]:
    return [[row[:4].numpy(), row[4:].numpy()] for row in rows]


def together(state: merging.State) -> Tensor:
    return torch.cat([torch.from_numpy(array) for array in state])


@settings(max_examples=50, deadline=None)
@given(rounds)
def test_simagg_is_the_loop_over_tensors(round_: tuple[list[list[float]], list[int]]) -> None:
    rows, samples = doubles(round_[0]), round_[1]
    if not (distances_from_mean(rows, GROUPS, "abs").sum(1) > 0).all():
        return  # 0/0 there
    expected = together(merging.simagg(states(rows), samples))
    torch.testing.assert_close(merge("simagg", uploads(W, rows, examples=samples)).row, expected, atol=1e-9, rtol=1e-9)


def test_equal_uploads_leave_simagg_the_samples() -> None:
    actual = weights(torch.zeros(2, 3, dtype=torch.float64), doubles([0.5, 0.25, 0.25]), 1e-5)
    assert actual.tolist() == [[0.5, 0.25, 0.25]] * 2


def test_the_released_distance_cannot_tell_a_permuted_tensor() -> None:
    rows = doubles([[1, 2, 3, 4, 5, 6], [4, 3, 2, 1, 6, 5]])
    assert distances_from_mean(rows, GROUPS, "sum").abs().max() == 0
    assert distances_from_mean(rows, GROUPS, "abs").min() > 0
    merged = merge("simagg", uploads(W, rows, examples=[3, 1]), distance="sum")
    torch.testing.assert_close(merged.row, doubles([0.75, 0.25]) @ rows)
    sums = distances_from_mean(ROWS, GROUPS, "sum")
    torch.testing.assert_close(sums[0], (ROWS[:, :4].sum(1) - ROWS[:, :4].sum(1).mean()).abs())


def test_golden_fedatt() -> None:
    actual = attention(squared_distances(ROWS, W, GROUPS).sqrt())
    torch.testing.assert_close(actual[0], doubles([0.23637821, 0.56197564, 0.20164616]), atol=1e-8, rtol=0)
    merged = merge("fedatt", uploads(W, ROWS))
    torch.testing.assert_close(merged.row[:4], doubles([0.46745616, 2.12098769, 2.53254384, -0.41155614]), atol=1e-8, rtol=0)


@settings(max_examples=50, deadline=None)
@given(rounds, st.floats(0.1, 2))
def test_fedatt_is_the_loop_over_tensors(round_: tuple[list[list[float]], list[int]], step: float) -> None:
    rows = doubles(round_[0])
    expected = together(merging.fedatt([W[:4].numpy(), W[4:].numpy()], states(rows), step))
    torch.testing.assert_close(merge("fedatt", uploads(W, rows), step=step).row, expected, atol=1e-9, rtol=1e-9)


def test_fedatts_noise_is_the_rounds_and_of_its_size() -> None:
    space = space_of(("encoder.fc.weight", (1, 10_000), "weight"), ("encoder.norm.running_var", (2,), "buffer"))
    start, rows = torch.zeros(10_002), torch.zeros(2, 10_002)
    first, again, other = (merge("fedatt", uploads(start, rows, space, round=r), dp=0.5).row for r in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first[:10_000].std()) == pytest.approx(0.5, rel=0.05)
    assert first[10_000:].tolist() == [0, 0]


def test_running_statistics() -> None:
    start, rows = doubles([1, 2, 2, 0, 5, 5]), doubles([[1.5, 2, 1.5, 0.5, 9, 7], [0, 2, 3, -1, 1, 1]])
    round_ = uploads(start, rows, WITH_BUFFER, examples=[3, 1])
    torch.testing.assert_close(merge("simagg", round_).row[4:], doubles([7, 5.5]))
    torch.testing.assert_close(merge("fedatt", round_).row[4:], doubles([5, 4]))


def test_one_upload_alone() -> None:
    torch.testing.assert_close(merge("simagg", uploads(W, ROWS[:1])).row, ROWS[0])
    torch.testing.assert_close(merge("fedatt", uploads(W, ROWS[:1]), step=1.0).row, ROWS[0])
