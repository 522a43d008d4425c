"""The server part of FedSiam-DA: its golden numbers, its edges, and what must hold of any uploads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedpriv.aggregation import Merged, Uploads
from fedpriv.aggregation.dual_mean import DualMean, DualParams, dual_weights
from fedpriv.parameters import Entry, ParameterSpace

GOLDEN = torch.tensor([[1.5, 2, 1.5, 0.5, 3, 4], [0, 2, 3, -1, 4, 3]], dtype=torch.float64)


def space_of(parameters: int, buffers: int = 0) -> ParameterSpace:
    entries = [Entry("encoder.weight", torch.Size([parameters]), 0, parameters, "encoder", "weight")]
    if buffers:
        stop = parameters + buffers
        entries.append(Entry("encoder.running_var", torch.Size([buffers]), parameters, stop, "encoder", "buffer"))
    return ParameterSpace(entries)


def merged(rows: Tensor, buffers: int = 0, examples: Sequence[int] | None = None, **options: str) -> Merged:
    k, p = rows.shape
    uploads = Uploads(
        space_of(p - buffers, buffers), rows, torch.zeros(p).to(rows), examples or [1] * k, [{}] * k, range(k), 1, k
    )
    return DualMean(DualParams(**options), None).merge(uploads, {})  # type: ignore[arg-type]


def by_definition(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(c, xi) of eqs. 13-15, client by client."""
    mean = sum(rows) / len(rows)
    c = np.array([float(w @ mean) / np.sqrt(float(w @ w) * float(mean @ mean)) for w in rows])
    return c, c / c.sum()


def test_golden_numbers() -> None:
    out = merged(GOLDEN)
    expected = [0.7483014, 2, 2.25169859, -0.25169859, 3.5011324, 3.4988676]
    torch.testing.assert_close(out.row, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-8)
    assert out.report["dual/cosine_min"] == pytest.approx(0.96782136, abs=5e-9)
    assert out.report["dual/cosine_max"] == pytest.approx(0.97221514, abs=5e-9)
    assert out.report["dual/tv"] == pytest.approx(0.0011324, abs=5e-8)
    mean = GOLDEN.mean(0)
    assert out.report["dual/moved"] == pytest.approx(float((out.row - mean).norm() / mean.norm()), rel=1e-9)
    xi = dual_weights(torch.tensor([0.96782136, 0.97221514], dtype=torch.float64), torch.tensor([0.5, 0.5])).second
    torch.testing.assert_close(xi, torch.tensor([0.4988676, 0.5011324], dtype=torch.float64), rtol=0, atol=5e-8)


def test_an_upload_that_points_away_weighs_nothing_or_less() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.2], [-0.5, 0.0]], dtype=torch.float64)
    c, xi = by_definition(rows.numpy())
    assert c[2] < 0
    raw, clamped = merged(rows, negative="paper"), merged(rows)
    np.testing.assert_allclose(raw.row.numpy(), xi @ rows.numpy(), rtol=1e-12)
    assert xi[2] < 0 and xi[:2].sum() > 1
    kept = np.maximum(c, 0) / np.maximum(c, 0).sum()
    np.testing.assert_allclose(clamped.row.numpy(), kept @ rows.numpy(), rtol=1e-12)
    assert raw.report["dual/negative"] == clamped.report["dual/negative"] == 1


def test_a_variance_stays_positive_where_a_weight_is_negative() -> None:
    rows = torch.tensor([[1.0, 0.0, 1e-3], [1.0, 0.2, 1e-3], [-0.9, 0.0, 50.0]], dtype=torch.float64)
    out = merged(rows, buffers=1, negative="paper")
    assert out.row[-1] == pytest.approx(1e-3), "weights of the clamp"
    assert torch.equal(merged(rows[:, :2], negative="paper").row, out.row[:2]), "the buffers take no part in the cosines"


@pytest.mark.parametrize("rows", [[[1.0, -2.0], [-1.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
@pytest.mark.parametrize("negative", ["clamp", "paper"])
def test_dual_mean_falls_back_to_the_first_mean(rows: list[list[float]], negative: str) -> None:
    out = merged(torch.tensor(rows), negative=negative)
    assert out.row.tolist() == [0.0, 0.0] and out.report["dual/fell_back"] == 1 and out.report["dual/tv"] == 0


def test_cosines_that_cancel_fall_back_too() -> None:
    first = torch.tensor([0.25, 0.75], dtype=torch.float64)
    weights = dual_weights(torch.tensor([0.5, -0.5], dtype=torch.float64), first, "paper")
    assert weights.fell_back and torch.equal(weights.second, first)


def test_the_first_mean_by_samples() -> None:
    rows, examples = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), [3, 1]
    c = np.array([3.0, 1.0]) / np.sqrt(10)
    out = merged(rows, examples=examples, pass1="samples")
    np.testing.assert_allclose(out.row.numpy(), c / c.sum(), rtol=1e-12)
    assert out.report["dual/tv"] == pytest.approx(0, abs=1e-12), "against the first mean, not against 1/K"
    assert merged(rows, examples=examples).row.tolist() == [0.5, 0.5], "eqs. 13-16 do not know n_k"


def test_a_large_model_in_float32_has_cosines_of_float64() -> None:
    """Sums of millions of float32 squares are off by more than the cosines differ."""
    drawn = torch.Generator().manual_seed(0)
    start = torch.randn(1_500_000, generator=drawn)
    rows = torch.stack([start + 0.05 * torch.randn(len(start), generator=drawn) for _ in range(3)])
    c, xi = by_definition(rows.double().numpy())
    out = merged(rows)
    assert out.report["dual/cosine_max"] <= 1
    assert out.report["dual/cosine_min"] == pytest.approx(c.min(), abs=1e-12)
    assert out.report["dual/tv"] == pytest.approx(abs(xi - 1 / 3).sum() / 2, abs=1e-12)
    assert out.row.dtype == torch.float32


@pytest.mark.parametrize("count", [1, 3, 7])
def test_equal_uploads_come_back_to_the_bit(count: int) -> None:
    row = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    out = merged(row.repeat(count, 1), buffers=10)
    assert torch.equal(out.row, row) and out.report["dual/tv"] < 1e-15


def test_an_upload_that_did_not_move_weighs_no_less() -> None:
    drawn = torch.Generator().manual_seed(2)
    start = torch.randn(500, generator=drawn)
    rows = torch.stack([start, *(start + 0.3 * torch.randn(500, generator=drawn) for _ in range(3))])
    c, _ = by_definition(rows.double().numpy())
    assert c.argmax() == 0
    assert torch.isfinite(merged(rows).row).all()


MATRICES = st.integers(1, 6).flatmap(
    lambda k: st.integers(1, 12).flatmap(
        lambda p: arrays(np.float64, (k, p), elements=st.floats(-5, 5, allow_subnormal=False).map(lambda v: round(v, 3)))
    )
)


@settings(max_examples=60, deadline=None)
@given(rows=MATRICES, negative=st.sampled_from(["clamp", "paper"]), data=st.data())
def test_what_holds_of_any_uploads(rows: np.ndarray, negative: str, data: st.DataObject) -> None:
    matrix = torch.from_numpy(rows)
    out = merged(matrix, negative=negative)
    assert torch.isfinite(out.row).all()
    order = data.draw(st.permutations(range(len(rows))))
    torch.testing.assert_close(merged(matrix[list(order)], negative=negative).row, out.row, rtol=1e-6, atol=1e-9)
    if len(rows) == 1:
        assert torch.equal(out.row, matrix[0])
    mean = rows.mean(0)
    assert sum(float(w @ mean) for w in rows) == pytest.approx(len(rows) * float(mean @ mean), abs=1e-9), "not all c are negative"
    if negative == "clamp":
        low, high = rows.min(0) - 1e-12, rows.max(0) + 1e-12
        assert ((out.row.numpy() >= low) & (out.row.numpy() <= high)).all(), "a mean lies among what it is a mean of"


@settings(max_examples=50, deadline=None)
@given(rows=MATRICES)
def test_the_gram_matrix_has_the_cosines_too(rows: np.ndarray) -> None:
    """c_k = mean_j G_kj / sqrt(G_kk mean(G))."""
    gram = rows @ rows.T
    if gram.mean() < 1e-3 or gram.diagonal().min() < 1e-3:
        return
    c = gram.mean(1) / np.sqrt(gram.diagonal() * gram.mean())
    report = merged(torch.from_numpy(rows)).report
    assert report["dual/cosine_min"] == pytest.approx(c.min(), abs=1e-9)
    assert report["dual/cosine_max"] == pytest.approx(c.max(), abs=1e-9)


@given(cosines=st.lists(st.floats(-1, 1), min_size=1, max_size=8), negative=st.sampled_from(["clamp", "paper"]))
def test_weights_sum_to_one(cosines: list[float], negative: str) -> None:
    first = torch.full((len(cosines),), 1 / len(cosines), dtype=torch.float64)
    weights = dual_weights(torch.tensor(cosines, dtype=torch.float64), first, negative).second  # type: ignore[arg-type]
    assert float(weights.sum()) == pytest.approx(1, abs=1e-6)
    if negative == "clamp":
        assert weights.min() >= 0
