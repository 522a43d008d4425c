"""The L-DAWA family: golden numbers, variants, edges, and what the clients are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpriv.aggregation import Merged
from fedpriv.aggregation.columns import exact_products, parameter_groups, products
from fedpriv.aggregation.dawa import NO_LOSS, coefficients, loss_weights
from fedpriv.errors import UsageError
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed
from tests.aggregation.rounds import TWO_LAYERS, doubles, merge, space_of, uploads
from tests.oracles import merging

Simulate = Callable[..., Simulation]

W = doubles([1, 2, 2, 0, 3, 4])
ROWS = doubles([[1.5, 2, 1.5, 0.5, 3, 4], [0, 2, 3, -1, 4, 3], [-1, 1, -2, 1, -3, -4]])
EXAMPLES = [100, 300, 600]
LOSSES = [{"statistic.loss": doubles(loss)} for loss in (1, 2, 0.5)]
BY_MODEL = doubles([0.98893662, 0.93369956, -0.84887469])
BY_LAYER = doubles([[0.95784149, 0.89087081, -0.37796447], [1, 0.96, -1]])
NORM = space_of(
    ("encoder.conv.weight", (2, 1, 1, 1), "weight"),
    ("encoder.norm.weight", (2,), "bias"),
    ("encoder.norm.bias", (2,), "bias"),
    ("encoder.norm.running_var", (2,), "buffer"),
)


def dawa(name: str, rows: Tensor = ROWS, start: Tensor = W, round: int = 1, **options: Any) -> Merged:
    return merge(
        name, uploads(start, rows, examples=EXAMPLES[: len(rows)], statistics=LOSSES[: len(rows)], round=round), **options
    )


def by_layer(coefficient: Tensor, rows: Tensor = ROWS) -> Tensor:
    """``(2, K)`` coefficients of the two layers -> the model."""
    return torch.cat([coefficient[0] @ rows[:, :4], coefficient[1] @ rows[:, 4:]])


def close(actual: Tensor, expected: Any, atol: float = 1e-8) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


def test_golden_cosines() -> None:
    inner = products(ROWS, W, parameter_groups(TWO_LAYERS, "array"))
    close(inner.cosines(), BY_LAYER)
    close(inner.together().cosines()[0], BY_MODEL)


def test_golden_models() -> None:
    close(dawa("l-dawa").row, [0.6049089, 1.10648671, 1.62176787, -0.26330485, 3.28, 3.62666667])
    close(dawa("l-dawa-fedavg").row, [0.37045491, 0.4993121, 1.39901732, -0.44614785, 3.252, 3.664])
    close(dawa("l-dawa-fedu").row, dawa("l-dawa-fedavg").row)
    close(dawa("m-dawa").row, BY_MODEL / 3 @ ROWS)
    softmax = torch.softmax(doubles([-1, -2, -0.5]), 0)
    close(dawa("l-dawa-loss").row, by_layer(softmax * BY_LAYER))
    close(dawa("loss").row, softmax @ ROWS)
    close(dawa("fedu").row, doubles([0.1, 0.3, 0.6]) @ ROWS)


def test_what_is_reported() -> None:
    merged = dawa("l-dawa")
    metrics = {name.removeprefix("l-dawa/"): value for name, value in merged.report.items()}
    assert metrics["negative"] == 2 and metrics["d_min"] == pytest.approx(-1)
    assert metrics["d"] == pytest.approx(float(BY_LAYER.mean())) and metrics["d_model"] == pytest.approx(float(BY_MODEL.mean()))
    for index, (name, part) in enumerate({"encoder.fc1.weight": slice(0, 4), "projector.fc.weight": slice(4, 6)}.items()):
        assert metrics[f"d/{name}"] == pytest.approx(float(BY_LAYER[index].mean()))
        assert metrics[f"norm/{name}"] == pytest.approx(float(merged.row[part].norm()))


def test_variants() -> None:
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    clamped = BY_LAYER.clamp(min=0) / 3
    close(dawa("l-dawa", variant="normalised").row, by_layer(clamped / clamped.sum(1, keepdim=True)))
    shrunk = BY_LAYER.mean(1, keepdim=True) * third
    close(dawa("l-dawa", variant="shrink_control").row, by_layer(shrunk))
    close(dawa("l-dawa", floor=0.0).row, by_layer(clamped))
    close(dawa("l-dawa", group="module").row, dawa("l-dawa").row)


def test_the_authors_warm_up_is_fedavg_by_samples() -> None:
    mean = doubles([0.1, 0.3, 0.6]) @ ROWS
    for round in (1, 3):
        close(dawa("l-dawa", round=round, variant="authors_code").row, mean)
    close(dawa("l-dawa", round=4, variant="authors_code").row, dawa("l-dawa").row)
    close(dawa("l-dawa", round=1, variant="authors_code", warmup=0).row, dawa("l-dawa").row)
    close(dawa("l-dawa", round=2, warmup=2).row, mean)


layers = st.lists(st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(layers)
def test_it_is_the_loop_over_arrays(rows: list[list[float]]) -> None:
    uploaded, q = doubles(rows), [1 / len(rows)] * len(rows)
    states = [[row[:4].numpy(), row[4:].numpy()] for row in uploaded]
    start = [W[:4].numpy(), W[4:].numpy()]
    for name, oracle in (("l-dawa", merging.l_dawa), ("m-dawa", merging.m_dawa)):
        expected = torch.cat([torch.from_numpy(a) for a in oracle(start, states, q)])
        torch.testing.assert_close(merge(name, uploads(W, uploaded)).row, expected, atol=1e-12, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_scaling(seed: int, factor: float) -> None:
    """Scaling the global model changes nothing; scaling one client's layer scales what that client adds to it."""
    rows = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plain = dawa("l-dawa", rows).row
    close(dawa("l-dawa", rows, factor * W).row, plain, 1e-10)
    scaled = rows.clone()
    scaled[1, :4] *= factor
    parts = products(rows, W, parameter_groups(TWO_LAYERS, "array")).cosines() / 3
    expected = plain.clone()
    expected[:4] += (factor - 1) * parts[0, 1] * rows[1, :4]
    close(dawa("l-dawa", scaled).row, expected, 1e-10)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(3)))
def test_the_order_of_the_clients_means_nothing(order: list[int]) -> None:
    for name in ("l-dawa", "m-dawa", "l-dawa-fedavg", "l-dawa-loss", "loss", "euc", "simagg", "fedatt"):
        rows, n = ROWS[list(order)], [EXAMPLES[i] for i in order]
        shuffled = merge(name, uploads(W, rows, examples=n, statistics=[LOSSES[i] for i in order]))
        close(shuffled.row, dawa(name).row, 1e-12)


def test_equal_cosines_leave_the_base_rule() -> None:
    d = torch.full((2, 3), 0.9, dtype=torch.float64)
    q = doubles([0.1, 0.3, 0.6])
    close(coefficients(d, q, "normalised", None), q.expand(2, 3), 1e-15)
    close(coefficients(d, q, "paper_exact", None), 0.9 * q.expand(2, 3))
    nothing_left = coefficients(-d, q, "normalised", None)
    close(nothing_left, q.expand(2, 3))


def test_no_client_moved() -> None:
    start = W.float()
    for name in ("l-dawa", "m-dawa", "simagg", "fedatt", "simprox"):
        torch.testing.assert_close(merge(name, uploads(start, start.repeat(3, 1))).row, start, rtol=1e-6, atol=0)
    close(merge("l-dawa", uploads(W, W.repeat(4, 1))).row, W, 1e-15)


def test_who_did_not_move_has_the_largest_coefficient() -> None:
    rows = torch.cat([W[None], ROWS])
    assert products(rows, W, parameter_groups(TWO_LAYERS, "array")).cosines().argmax(1).tolist()[0] == 0


def test_a_single_upload_is_shrunk() -> None:
    close(dawa("l-dawa", ROWS[1:2]).row, by_layer(BY_LAYER[:, 1:2], ROWS[1:2]), 1e-7)
    close(dawa("l-dawa", ROWS[1:2], variant="normalised").row, ROWS[1])


def test_zero_arrays_are_not_scaled() -> None:
    start = W.clone()
    start[4:] = 0
    merged = dawa("l-dawa", start=start)
    close(merged.row[4:], ROWS[:, 4:].mean(0))
    rows = ROWS.clone()
    rows[0, :4] = 0
    assert torch.isfinite(dawa("l-dawa", rows).row).all()


def test_running_statistics_are_averaged_or_scaled() -> None:
    start = doubles([1, 2, 1, 1, 0.5, 0.5, 1, 2])
    rows = doubles([[1, 3, 1, 2, 0.5, -0.5, 2, 1], [2, 1, 1, 1, 1, 0, 5, 6]])
    round_ = uploads(start, rows, NORM, examples=[1, 3])
    close(merge("l-dawa", round_).row[6:], rows[:, 6:].mean(0))
    close(merge("l-dawa-fedavg", round_).row[6:], doubles([0.25, 0.75]) @ rows[:, 6:])
    d = torch.cosine_similarity(rows[:, 6:], start[None, 6:])
    close(merge("l-dawa", round_, buffers="same").row[6:], d / 2 @ rows[:, 6:])
    authors = merge("l-dawa", uploads(start, rows, NORM, round=4), variant="authors_code")
    close(authors.row[6:], d / 2 @ rows[:, 6:])
    model = torch.cosine_similarity(rows[:, :6], start[None, :6])
    close(merge("m-dawa", round_, buffers="same").row, model / 2 @ rows)
    together = torch.cosine_similarity(rows[:, 2:6], start[None, 2:6])
    close(merge("l-dawa", round_, group="module").row[2:6], together / 2 @ rows[:, 2:6])


def test_float32_cosines_stay_below_one() -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(2_000_000, generator=draw)
    rows = start + 1e-3 * torch.randn(2, len(start), generator=draw)
    space = space_of(("encoder.fc.weight", (2, 1_000_000), "weight"))
    expected = torch.stack([1 - torch.cosine_similarity(row.double(), start.double(), dim=0) for row in rows])
    groups = parameter_groups(space, "array")
    fast, exact = (1 - product(rows, start, groups).cosines()[0] for product in (products, exact_products))
    torch.testing.assert_close(fast, expected, rtol=0, atol=2e-7)
    torch.testing.assert_close(exact, expected, rtol=1e-6, atol=0)
    assert (expected < 1e-6).all() and (fast >= 0).all()


def test_cosines_of_unchanged_and_tiny_layers() -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(200_000, generator=draw)
    faint = 1e-4 * start + 1e-4 * torch.randn(len(start), generator=draw)
    space = space_of(("encoder.fc.weight", (2, 100_000), "weight"))
    unchanged, near_zero = products(torch.stack([start, faint]), start, parameter_groups(space, "array")).cosines()[0].tolist()
    assert unchanged == pytest.approx(1, abs=2e-7)
    assert near_zero == pytest.approx(float(torch.cosine_similarity(faint.double(), start.double(), dim=0)), abs=2e-7)


def test_weights_by_loss() -> None:
    close(loss_weights(doubles([800, 805, NO_LOSS])), [1 / (1 + math.exp(-5)), 1 / (1 + math.exp(5)), 0])
    close(loss_weights(doubles([NO_LOSS, NO_LOSS])), [0.5, 0.5])
    with pytest.raises(UsageError, match=r"statistic\.loss"):
        merge("loss", uploads(W, ROWS))


@pytest.mark.parametrize("name", ["loss", "l-dawa-loss"])
def test_clients_send_their_loss_where_it_counts(simulate: Simulate, name: str) -> None:
    up: list[Sealed] = []
    simulation = simulate("fedavg", play=False, aggregation=name, **{"train.participation": 1.0})
    simulation.taps.append(lambda way, sealed: up.append(sealed) if way == "up" else None)
    record = simulation.run_round()
    losses = [float(sealed.tensors()["statistic.loss"]) for sealed in up]
    sizes = [sealed.num_examples or 0 for sealed in up]
    mean = sum(loss * n for loss, n in zip(losses, sizes, strict=True)) / sum(sizes)
    assert record["metrics"]["train_loss"] == pytest.approx(mean)


@pytest.mark.parametrize("name", ["l-dawa", "m-dawa", "l-dawa-fedavg", "fedu", "l-dawa-fedu", "euc"])
def test_nothing_is_sent_that_is_not_needed(simulate: Simulate, name: str) -> None:
    up: list[Sealed] = []
    simulation = simulate("fedavg", play=False, aggregation=name, **{"train.participation": 1.0})
    simulation.taps.append(lambda way, sealed: up.append(sealed) if way == "up" else None)
    simulation.run_round()
    assert all(set(sealed.schema) == set(simulation.federation.method.shared_names) for sealed in up)


def test_a_run_of_l_dawa_shrinks_where_normalised_does_not(simulate: Simulate) -> None:
    options = {"objective": "cross-entropy", "train.rounds": 5, "train.weight_decay": 0.0}
    kept = {v: simulate("fedavg", **options, aggregation={"name": "l-dawa", "variant": v}) for v in ("paper_exact", "normalised")}
    names = [e.name for e in kept["normalised"].federation.resident.space.entries if e.kind == "weight"]
    last = {variant: run.folder.records()[-1]["metrics"] for variant, run in kept.items()}
    norms = {variant: sum(metrics[f"l-dawa/norm/{name}"] for name in names) for variant, metrics in last.items()}
    assert norms["paper_exact"] < norms["normalised"]
    assert {f"l-dawa/d/{name}" for name in names} <= last["paper_exact"].keys()


def test_the_paper_names_are_one_class_with_other_defaults() -> None:
    for name, options in {
        "m-dawa": {"divergence": "model"},
        "l-dawa-fedavg": {"base": "samples"},
        "l-dawa-loss": {"base": "loss"},
        "loss": {"base": "loss", "divergence": "none"},
    }.items():
        assert torch.equal(dawa(name).row, dawa("l-dawa", **options).row)


def test_fedavg_is_the_family_without_divergence(simulate: Simulate) -> None:
    plain = simulate("fedavg", **{"data.partition.name": "lognormal"})
    same = simulate(
        "fedavg",
        **{"data.partition.name": "lognormal", "aggregation": {"name": "l-dawa", "divergence": "none", "base": "samples"}},
    )
    other = simulate("fedavg", **{"data.partition.name": "lognormal", "aggregation": "l-dawa"})
    assert torch.equal(plain.state.row, same.state.row) and not torch.equal(plain.state.row, other.state.row)
