"""SimProx: golden numbers, bounds, what happens at the edges, and the Gram form against pairs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpriv.aggregation import Merged
from fedpriv.aggregation.simprox import cosine_matrix, gram, mean_similarity, weights
from fedpriv.errors import UsageError
from tests.aggregation.rounds import aggregation, doubles, merge, space_of, uploads
from tests.oracles import merging

W = doubles([1, 2, 2, 0, 3, 4])
ROWS = doubles([[1.5, 2, 1.5, 0.5, 3, 4], [0, 2, 3, -1, 4, 3], [1, 2.5, 2, 0.5, 2.5, 4.5]])
EVERYTHING = [slice(0, 6)]
WITH_BUFFER = space_of(("encoder.fc.weight", (2, 2), "weight"), ("encoder.norm.running_var", (2,), "buffer"))


def report(merged: Merged) -> dict[str, float]:
    return {name.removeprefix("simprox/"): value for name, value in merged.report.items()}


def simprox(rows: Tensor = ROWS, start: Tensor = W, **options: Any) -> Merged:
    return merge("simprox", uploads(start, rows), **options)


def test_golden_numbers() -> None:
    inner = gram(ROWS, W, EVERYTHING)
    distances = inner.squared_distances.sqrt()
    pairs = distances[[0, 0, 1], [1, 2, 2]]
    torch.testing.assert_close(pairs, doubles([2.95803989, 1.11803399, 3.0]), atol=1e-8, rtol=0)
    assert float(pairs.mean()) == pytest.approx(2.35869129, abs=1e-8)
    cosines = cosine_matrix(inner.weights)[[0, 0, 1], [1, 2, 2]]
    torch.testing.assert_close(cosines, doubles([0.88202478, 0.98430668, 0.88319137]), atol=1e-8, rtol=0)
    assert float(inner.cosines_with_start.mean()) == pytest.approx(0.97009087, abs=1e-8)
    gauss = torch.exp(-pairs.square() / (2 * pairs.mean() ** 2))
    torch.testing.assert_close(gauss, doubles([0.45548789, 0.89373955, 0.44536803]), atol=1e-8, rtol=0)
    similarity = mean_similarity(inner, 0.7, "weights")
    torch.testing.assert_close(similarity, doubles([0.85560013, 0.75295404, 0.85449045]), atol=1e-8, rtol=0)
    torch.testing.assert_close(inner.moved, doubles([0.8660254, 2.23606798, 1]), atol=1e-8, rtol=0)
    alpha, score = weights(inner.moved, similarity)
    torch.testing.assert_close(score, doubles([0.4730079, 0.11354097, 0.41345113]), atol=1e-8, rtol=0)
    torch.testing.assert_close(alpha, doubles([0.37875483, 0.26438918, 0.356856]), atol=1e-8, rtol=0)
    merged = simprox()
    expected = doubles([0.92498824, 2.178428, 2.07501176, 0.10341624, 3.08596118, 3.91403882])
    torch.testing.assert_close(merged.row, expected, atol=1e-8, rtol=0)
    metrics = report(merged)
    assert metrics["lam"] == 0.7 and metrics["tau_fired"] == 0 and metrics["sbar"] == pytest.approx(0.97009087, abs=1e-8)
    assert metrics["tv"] == pytest.approx(float((alpha - 1 / 3).abs().sum() / 2))
    assert (metrics["alpha_min"], metrics["alpha_max"]) == (
        pytest.approx(0.26438918, abs=1e-8),
        pytest.approx(0.37875483, abs=1e-8),
    )


def test_the_rule_for_lam_fires_below_tau() -> None:
    metrics = report(simprox(tau=0.99))
    assert metrics["tau_fired"] == 1 and metrics["lam"] == pytest.approx(0.7 * 0.97009087 / 0.99, abs=1e-8)
    opposite = report(simprox(rows=-ROWS))
    assert opposite["sbar"] < 0 and opposite["lam"] == 0


matrices = st.integers(2, 6).flatmap(
    lambda k: st.lists(st.lists(st.floats(-3, 3), min_size=6, max_size=6), min_size=k, max_size=k)
)


@settings(max_examples=60, deadline=None)
@given(matrices, st.floats(0, 1), st.floats(0.05, 1))
def test_it_is_the_loop_over_pairs(rows: list[list[float]], lam0: float, tau: float) -> None:
    uploaded = doubles(rows) + W
    alpha = merging.simprox_alpha(W.numpy(), list(uploaded.numpy()), lam0, tau)
    sbar = np.mean([merging.cosine(row, W.numpy()) for row in uploaded.numpy()])
    if sbar < 0 or not float(uploaded.norm(dim=1).min()) > 0:
        return  # the equations leave this case open; it has tests of its own
    expected = doubles(alpha) @ uploaded
    torch.testing.assert_close(simprox(uploaded, lam0=lam0, tau=tau).row, expected, atol=1e-9, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(-0.999, 1)), min_size=1, max_size=20))
def test_alpha_is_a_nearly_uniform_distribution(scores: list[tuple[float, float]]) -> None:
    moved, similarity = doubles(scores).T
    alpha, score = weights(moved, similarity)
    m = len(scores)
    assert float(alpha.sum()) == pytest.approx(1) and float(score.sum()) == pytest.approx(1)
    assert 1 / (m - 1 + math.e) - 1e-12 <= float(alpha.min()) and float(alpha.max()) <= math.e / (m - 1 + math.e) + 1e-12
    assert float((alpha - 1 / m).abs().sum() / 2) <= (math.e - 1) * (m - 1) / (m * (m - 1 + math.e)) + 1e-12
    shifted, _ = weights(moved + 1e4, similarity)
    torch.testing.assert_close(alpha, shifted, atol=1e-9, rtol=0)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(5)), st.integers(0, 100))
def test_the_order_of_the_clients_means_nothing(order: list[int], seed: int) -> None:
    rows = W + torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(simprox(rows).row, simprox(rows[list(order)]).row, atol=1e-12, rtol=1e-12)


def test_equal_uploads_weigh_the_same() -> None:
    merged = simprox(ROWS[:1].repeat(4, 1))
    torch.testing.assert_close(merged.row, ROWS[0])
    assert report(merged)["tv"] == pytest.approx(0) and report(merged)["alpha_max"] == pytest.approx(0.25)


def test_one_upload_alone_is_the_model() -> None:
    assert torch.equal(simprox(ROWS[1:2]).row, ROWS[1])


def test_huge_updates_do_not_underflow() -> None:
    """exp(-1000) is zero in float64, and the printed eq. 13 would be 0/0."""
    far = W + 1000 * (ROWS - W)
    merged = simprox(far)
    assert torch.isfinite(merged.row).all()
    assert report(merged)["alpha_max"] == pytest.approx(math.e / (2 + math.e))


def test_who_did_not_move_weighs_the_most_unless_left_out() -> None:
    rows = torch.cat([W[None], ROWS])
    assert report(simprox(rows))["g_min"] == 0
    alpha, _ = weights(doubles([0, 1, 2]), doubles([0, 0, 0]))
    assert alpha.argmax() == 0
    filtered = simprox(rows, min_update=1e-9)
    torch.testing.assert_close(filtered.row, simprox(ROWS).row)
    assert report(filtered)["left_out"] == 1
    none = simprox(W.repeat(2, 1), min_update=1e-9)
    assert torch.equal(none.row, W) and report(none)["left_out"] == 2


def test_small_changes_of_large_weights_do_not_cancel() -> None:
    """In a float32 Gram matrix of the weights these squared distances come out negative."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(200_000, generator=draw) * 7
    changes = torch.randn(3, len(start), generator=draw)
    changes *= 1e-4 * start.norm() / changes.norm(dim=1, keepdim=True)
    rows = start + changes
    exact = rows.double() - start.double()
    expected = torch.cdist(exact, exact)
    torch.testing.assert_close(gram(rows, start, [slice(0, len(start))]).squared_distances.sqrt(), expected, rtol=1e-9, atol=0)
    naive = rows @ rows.T
    wrong = naive.diagonal()[:, None] + naive.diagonal() - 2 * naive
    assert (wrong.clamp(min=0).sqrt().double() - expected).abs().max() > 0.05 * expected.max()


@pytest.mark.parametrize(
    ("options", "unit"), [({"g_scale": "mean"}, None), ({"g_scale": "rms"}, 6**0.5), ({"g_scale": "relative"}, 34**0.5)]
)
def test_scales_of_g(options: dict[str, Any], unit: float | None) -> None:
    inner = gram(ROWS, W, EVERYTHING)
    moved = inner.moved / (unit or float(inner.moved.mean()))
    alpha, _ = weights(moved, mean_similarity(inner, 0.7, "weights"))
    torch.testing.assert_close(simprox(**options).row, alpha @ ROWS)


def test_ablations() -> None:
    inner = gram(ROWS, W, EVERYTHING)
    torch.testing.assert_close(simprox(no_similarity=True).row, torch.softmax(torch.softmax(-inner.moved, 0), 0) @ ROWS)
    similarity = mean_similarity(inner, 0.7, "weights")
    torch.testing.assert_close(simprox(final_softmax=False).row, weights(inner.moved, similarity, False)[0] @ ROWS)
    updates = mean_similarity(inner, 0.7, "updates")
    assert not torch.allclose(updates, similarity)
    torch.testing.assert_close(simprox(similarity_space="updates").row, weights(inner.moved, updates)[0] @ ROWS)


def test_per_step_needs_the_steps() -> None:
    round_ = uploads(W, ROWS, statistics=[{"statistic.steps": torch.tensor(n)} for n in (1, 4, 9)])
    inner = gram(ROWS, W, EVERYTHING)
    alpha, _ = weights(inner.moved / doubles([1, 2, 3]), mean_similarity(inner, 0.7, "weights"))
    torch.testing.assert_close(merge("simprox", round_, per_step=True).row, alpha @ ROWS)
    with pytest.raises(UsageError, match=r"statistic\.steps"):
        simprox(per_step=True)


def test_what_a_client_lacks_does_not_count_as_moved() -> None:
    """The server's image branch goes on between its local updates, and the client has no images."""
    space = space_of(("encoder.image.weight", (2,), "weight"), ("encoder.text.weight", (2,), "weight"))
    server_part, row = aggregation("simprox", space, prev="own"), doubles([5, 5, 3, 4])
    update = SimpleNamespace(first_time=False, received=space.unpack(row), row=row, unused=frozenset({"encoder.image.weight"}))
    update.private = {"simprox.previous": doubles([0, 0, 0, 0])}
    assert server_part.statistics(update)["statistic.moved"] == 5  # type: ignore[arg-type]


def test_running_statistics_are_weighed_and_not_looked_at() -> None:
    start = doubles([1, 2, 2, 0, 5, 5])
    rows = doubles([[1.5, 2, 1.5, 0.5, 900, 7], [0, 2, 3, -1, 1, 1]])
    merged = merge("simprox", uploads(start, rows, WITH_BUFFER))
    server_part = aggregation("simprox", WITH_BUFFER)
    alone = server_part.merge(uploads(start[:4], rows[:, :4], WITH_BUFFER.restricted(["encoder.fc.weight"])), {})
    assert merged.report == alone.report
    alpha = torch.linalg.lstsq(rows[:, :4].T, merged.row[:4]).solution
    torch.testing.assert_close(merged.row[4:], alpha @ rows[:, 4:])


def test_alpha_is_compared_with_the_samples() -> None:
    round_ = uploads(W, ROWS, examples=[10, 300, 20])
    alpha = np.array([0.37875483, 0.26438918, 0.356856])
    metrics = report(merge("simprox", round_))
    assert metrics["alpha_with_examples"] == pytest.approx(np.corrcoef(alpha, [10, 300, 20])[0, 1], abs=1e-6)
    assert "alpha_with_examples" not in report(merge("simprox", uploads(W, ROWS))), "equal numbers correlate with nothing"
