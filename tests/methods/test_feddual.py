"""FedDUAL: the closed form of its KL, beta, the mean shift against a slow one, and what its readings are identical to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from torch import Tensor

from fedpriv.aggregation import Uploads
from fedpriv.aggregation.barycentre import (
    gaussian_barycenter,
    kernel_weights,
    mean_shift,
    positional,
    quantile_barycenter,
    wasserstein,
)
from fedpriv.aggregation.mean_shift import MeanShift, dynamic_names
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.methods.base import options_of
from fedpriv.methods.build import with_options
from fedpriv.methods.feddual import FedDual
from fedpriv.objectives.adaptive_kl import LAST_ACCURACY, kl_gradient, kl_of_softmax, weight_of_kl
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed, tensor_of
from tests.oracles import feddual as oracle

Simulate = Callable[..., Simulation]
UNIFORM = {"method.weights": "uniform"}
LEARNS = {"data.limit": None, "model.name": "mlp_lineage", "train.batch_size": 50, "train.local_epochs": 3}
"""With which a client's accuracy rises from epoch to epoch."""
ADAM = {"train.optimizer": "adam", "train.lr": 1e-3, "train.weight_decay": 0.0}


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def even(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


# --- the client: KL and beta -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [1e-3, 0.1, 3.0, 300.0])
def test_kl_and_its_gradient_are_those_of_autograd_in_float64(apart: float) -> None:
    reference = drawn(50)
    weights = reference + drawn(50, seed=1, scale=apart)
    value, gradient = oracle.kl(weights, reference)
    torch.testing.assert_close(kl_gradient(weights, reference), gradient, rtol=1e-10, atol=1e-15)
    # The oracle's own value loses to cancellation what is small against log p.
    torch.testing.assert_close(kl_of_softmax(weights, reference), value, rtol=1e-10, atol=1e-14)


def test_kl_golden() -> None:
    """p = (1/3, 2/3), q = (1/2, 1/2): KL = ln 2 - H(p), gradient p (log p/q - KL)."""
    weights, reference = torch.tensor([0.0, np.log(2)], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    p = np.array([1 / 3, 2 / 3])
    value = float((p * np.log(2 * p)).sum())
    assert abs(float(kl_of_softmax(weights, reference)) - value) < 1e-15 and abs(value - 0.0566330123) < 1e-9
    np.testing.assert_allclose(kl_gradient(weights, reference), p * (np.log(2 * p) - value), rtol=1e-14)


def test_kl_of_a_model_with_itself_is_zero() -> None:
    weights = drawn(100)
    assert float(kl_of_softmax(weights, weights)) == 0 and not kl_gradient(weights, weights).any()


@pytest.mark.parametrize("constant", [0.25, -3.0, 100.0])
def test_a_constant_on_all_weights_changes_nothing(constant: float) -> None:
    reference = drawn(64)
    weights = reference + drawn(64, seed=1, scale=0.1)
    torch.testing.assert_close(
        kl_of_softmax(weights + constant, reference), kl_of_softmax(weights, reference), rtol=1e-9, atol=1e-16
    )
    torch.testing.assert_close(kl_gradient(weights + constant, reference), kl_gradient(weights, reference), rtol=1e-9, atol=1e-16)


def test_closed_form_kl_gradient_is_accurate_in_float32() -> None:
    """With many weights, log p = -log d is coarser than the KL."""
    d = 400_000
    reference = drawn(d, scale=0.05).float()
    weights = reference + drawn(d, seed=1, scale=1e-3).float()
    _, exact = oracle.kl(weights, reference)

    def error(gradient: Tensor) -> float:
        return float((gradient.double() - exact).norm() / exact.norm())

    z = weights.clone().requires_grad_(True)
    log_p, log_q = torch.log_softmax(z, 0), torch.log_softmax(reference, 0)
    (naive,) = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), z)
    assert error(kl_gradient(weights, reference)) < 2e-6 < 1e-4 < error(naive)


def test_kl_approximates_a_proximal_term_of_weight_one_over_d() -> None:
    d = 20_000
    reference = drawn(d, scale=0.05)
    delta = drawn(d, seed=1, scale=1e-2)
    value = float(kl_of_softmax(reference + delta, reference))
    assert abs(value / (0.5 * float(delta.var())) - 1) < 0.02
    assert abs(float(kl_gradient(reference + delta, reference).norm()) / (float(delta.norm()) / d) - 1) < 0.02


def test_the_gradient_goes_over_the_last_dimension() -> None:
    reference, weights = drawn(3, 40), drawn(3, 40, seed=1)
    rows = torch.stack([kl_gradient(w, r) for w, r in zip(weights, reference, strict=True)])
    torch.testing.assert_close(kl_gradient(weights, reference), rows, rtol=1e-12, atol=0)


@settings(deadline=None)
@given(local=st.floats(0, 1), received=st.floats(0, 1))
def test_beta_is_a_sigmoid_of_the_gain(local: float, received: float) -> None:
    beta = weight_of_kl(local, received)
    assert 1 / (1 + np.e) - 1e-12 <= beta <= np.e / (1 + np.e) + 1e-12
    assert (beta > 0.5) == (local - received > 0) or abs(local - received) < 1e-15
    assert abs(beta + weight_of_kl(local, received, sign=-1) - 1) < 1e-12


def test_beta_golden() -> None:
    assert weight_of_kl(0.7, 0.7) == 0.5
    assert abs(weight_of_kl(1, 0) - 0.7310585786300049) < 1e-15
    assert abs(weight_of_kl(0.9, 0.6) - 0.574442516811659) < 1e-15


@pytest.mark.parametrize("pair", [(81.7, 0.5), (0.5, 81.7), (-0.1, 0.5), (float("nan"), 0.5)])
def test_accuracies_in_percent_are_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="share in"):
        weight_of_kl(*pair)


def betas(simulation: Simulation, client: int = 0, round: int = 1, private: Any = None) -> tuple[list[float], ModelLocalUpdate]:
    """The betas of a local update's epochs, in order."""
    fed = simulation.federation
    fed.resident.row.copy_(simulation.state.row)
    kept = fed.method.initial_private(client, fed.initial) if private is None else private
    update = ModelLocalUpdate(fed.resident, fed.data.train(client), fed.config, round, client, {}, kept, private is None)
    fed.method.local_update(update)
    return update.memo["adaptive_kl.betas"].tolist(), update


def test_beta_begins_at_a_half_and_follows_the_clients_accuracy(simulate: Simulate) -> None:
    simulation = simulate("feddual", play=False, **LEARNS)
    measured: list[float] = []
    accuracy = ModelLocalUpdate.accuracy
    try:
        ModelLocalUpdate.accuracy = lambda update: (measured.append(accuracy(update)), measured[-1])[1]  # type: ignore[method-assign]
        beta, update = betas(simulation)
    finally:
        ModelLocalUpdate.accuracy = accuracy  # type: ignore[method-assign]
    assert beta[0] == 0.5 and beta[1] > 0.5 and beta[2] > 0.5
    assert len(measured) == 3, "the received model's, and one before each later epoch"
    assert beta[1:] == [weight_of_kl(local, measured[0]) for local in measured[1:]]
    update.model.row.copy_(update.start)
    assert update.accuracy() == measured[0]


def test_the_other_ways_to_measure_beta(simulate: Simulate) -> None:
    plain, reverse, running, half = (
        betas(simulate("feddual", play=False, **LEARNS, **options))[0]
        for options in (
            {},
            {"method.beta_sign": -1},
            {"method.beta_mode": "epoch_running"},
            {"method.beta_mode": "half"},
        )
    )
    assert half == [0.5] * 3
    assert reverse[0] == 0.5 and all(beta < 0.5 for beta in reverse[1:])
    assert running[0] == 0.5 and running[1] != plain[1] and all(0.26 < beta < 0.74 for beta in running)


def test_running_accuracy_is_that_of_the_last_epochs_own_batches(simulate: Simulate) -> None:
    """At so small a learning rate that nothing moves, it is the received model's accuracy: beta stays a half."""
    options = {"train.local_epochs": 3, "train.lr": 1e-12, "train.weight_decay": 0.0, "method.beta_mode": "epoch_running"}
    assert betas(simulate("feddual", play=False, **options))[0] == [0.5] * 3


def test_stale_beta_is_of_the_clients_own_last_model(simulate: Simulate) -> None:
    simulation = simulate(
        "feddual", **{"method.beta_mode": "stale", "train.participation": 1.0, "train.rounds": 2, "train.batch_size": 10}
    )
    kept = simulation.private(3)
    assert 0 < float(kept[LAST_ACCURACY]) <= 1
    fed = simulation.federation
    first, _ = betas(simulation)
    later, update = betas(simulation, 3, 3, kept)
    update.model.row.copy_(update.start)
    assert first == [0.5] and later == [weight_of_kl(float(kept[LAST_ACCURACY]), update.accuracy())]
    assert set(kept) == set(fed.method.kept_names) | {LAST_ACCURACY}


def test_the_step_is_the_weighted_loss_of_the_paper(simulate: Simulate) -> None:
    """One full-batch step of plain SGD against autograd on (1 - beta) CE + beta KL of the whole row."""
    options = {"train.local_epochs": 2, "train.batch_size": 999, "train.momentum": 0.0, "train.weight_decay": 0.0}
    simulation = simulate("feddual", play=False, **options, **{"method.kl_scale": "dim", "train.lr": 0.5})
    fed = simulation.federation
    schedule, update = betas(simulation)
    ended, resident = update.row.clone(), fed.resident
    expected = update.start.clone()
    for beta in schedule:
        resident.row.copy_(expected)
        ce = ModelLocalUpdate(resident, fed.data.train(0), fed.config, 1, 0, {}, {}, True).gradient().double()
        _, kl = oracle.kl(expected, update.start)
        expected = (expected.double() - 0.5 * ((1 - beta) * ce + beta * len(kl) * kl)).float()
    torch.testing.assert_close(ended, expected, rtol=1e-5, atol=1e-6)
    without = betas(simulate("feddual", play=False, **options, **{"method.kl_grad": False, "train.lr": 0.5}))[1].row
    assert float((without - ended).abs().max()) > 1e-4, "the KL acts where its scale lets it"


def test_the_kl_is_a_learning_rate_and_no_more_as_published(simulate: Simulate) -> None:
    on, off = (betas(simulate("feddual", play=False, **{"method.kl_grad": grad}))[1] for grad in (True, False))
    assert not torch.equal(on.row, off.row)
    assert float((on.row - off.row).norm() / (on.row - on.start).norm()) < 1e-3


@pytest.mark.parametrize("scope", ["all", "trainable", "per_layer"])
def test_the_scope_of_the_softmax(simulate: Simulate, scope: str) -> None:
    given = {"method.kl_scope": scope, "method.kl_scale": "dim", "model.predictor": 8}
    simulation = simulate("feddual", play=False, **given)
    fed = simulation.federation
    objective, space = fed.method.objective, fed.resident.space
    encoder = frozenset({"encoder"})

    class Fixed:
        row, grad, lr, trains = fed.initial + 0.01 * drawn(space.size).float(), torch.zeros(space.size), 1.0, encoder

    class Begun:
        memo, start = {"adaptive_kl.beta": torch.tensor([0.25])}, fed.initial

    objective.correct(Begun, Fixed)  # type: ignore[arg-type]
    entries = [entry for entry in space.entries if entry.kind != "buffer" and (scope == "all" or entry.role == "encoder")]
    parts = [[entry] for entry in entries] if scope == "per_layer" else [entries]
    expected = torch.zeros(space.size)
    for part in parts:
        index = torch.cat([torch.arange(entry.start, entry.stop) for entry in part])
        expected[index] = (0.25 * len(index) * oracle.kl(Fixed.row[index], fed.initial[index])[1]).float()
    torch.testing.assert_close(Fixed.grad, expected, rtol=1e-4, atol=1e-8)
    assert any(entry.kind == "buffer" for entry in space.entries)


def test_beta_and_the_size_of_the_kl_are_in_the_record(simulate: Simulate) -> None:
    metrics = simulate("feddual", **LEARNS, **{"train.rounds": 1}).folder.records()[-1]["metrics"]
    assert 0.5 < metrics["adaptive_kl/beta"] < 0.74 and 0 < metrics["adaptive_kl/kl"] < 1


# --- the server: mean shift ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize(("scale", "eps"), [(1.0, 0.05), (1e-3, 1e-3), (1.0, 1e-3)])
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_mean_shift_is_the_slow_one(scale: float, eps: float, iterations: int, additive: bool) -> None:
    vectors = drawn(6, 40, scale=scale)
    shift = mean_shift(
        vectors, even(6), wasserstein(vectors, 1), eps, normaliser="additive" if additive else "softmax", iterations=iterations
    )
    b, w = oracle.mean_shift(vectors.numpy(), eps, iterations, additive)
    np.testing.assert_allclose(shift.weights, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(shift.center, b, rtol=1e-9, atol=1e-12 * scale)


def test_mean_shift_golden() -> None:
    """Two clients with (0, 0) and (4, 4), a third with (2, 2): b stays at the mean, weights 1 : e^2 : 1 at eps 1."""
    vectors = torch.tensor([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]], dtype=torch.float64)
    shift = mean_shift(vectors, even(3), wasserstein(vectors, 1), 1.0)
    heavy = np.exp(2) / (2 + np.exp(2))
    np.testing.assert_allclose(shift.weights, [(1 - heavy) / 2, heavy, (1 - heavy) / 2], rtol=1e-14)
    assert shift.center.tolist() == pytest.approx([2, 2]) and shift.iterations == 1
    assert shift.distances.tolist() == pytest.approx([2, 0, 2])


@pytest.mark.parametrize("p", [1, 2])
def test_distances_are_those_of_scipy_and_pot(p: int) -> None:
    vectors, b = drawn(5, 60), drawn(60, seed=1)
    distances = wasserstein(vectors, p)(b)
    if p == 1:
        np.testing.assert_allclose(distances, [wasserstein_distance(b, v) for v in vectors], rtol=1e-12)
    powered = ot.wasserstein_1d(b[:, None].expand(-1, 5), vectors.T, p=p)
    torch.testing.assert_close(distances, powered ** (1 / p), rtol=1e-10, atol=0)


def test_distances_are_added_up_in_float64() -> None:
    vectors = drawn(3, 100_000, scale=1e-3).float()
    b = vectors.double().mean(0)
    exact = torch.stack([(b.sort().values - v.double().sort().values).abs().mean() for v in vectors])
    torch.testing.assert_close(wasserstein(vectors, 1)(b), exact, rtol=1e-13, atol=0)


def test_one_client_is_taken_as_it_is() -> None:
    vectors = drawn(1, 30)
    for relative in (True, False):
        shift = mean_shift(vectors, even(1), wasserstein(vectors, 1), 1e-5, relative)
        assert torch.equal(shift.center, vectors[0]) and shift.weights.tolist() == [1.0]


@pytest.mark.parametrize("relative", [True, False])
def test_identical_clients_are_taken_as_they_are(relative: bool) -> None:
    vectors = drawn(1, 30).repeat(4, 1)
    shift = mean_shift(vectors, even(4), wasserstein(vectors, 1), 1.0, relative)
    torch.testing.assert_close(shift.center, vectors[0], rtol=1e-14, atol=0)
    torch.testing.assert_close(shift.weights, even(4), rtol=1e-14, atol=0)


def test_a_narrow_kernel_takes_the_client_nearest_to_the_mean() -> None:
    vectors = drawn(8, 200) * torch.linspace(0.5, 2, 8, dtype=torch.float64)[:, None]
    mean = vectors.mean(0)
    nearest = int(np.argmin([wasserstein_distance(mean, v) for v in vectors]))
    shift = mean_shift(vectors, even(8), wasserstein(vectors, 1), 1e-12)
    assert torch.equal(shift.center, vectors[nearest]) and float(shift.weights[nearest]) == 1.0
    assert shift.iterations <= 5, "once b is one client, it stays"


def test_a_wide_kernel_is_the_mean() -> None:
    vectors = drawn(8, 200)
    shift = mean_shift(vectors, even(8), wasserstein(vectors, 1), 1e9)
    torch.testing.assert_close(shift.center, vectors.mean(0), rtol=1e-8, atol=1e-9)


def test_additive_normaliser_is_zero_if_the_kernel_underflows() -> None:
    vectors = drawn(8, 200)
    shift = mean_shift(vectors, even(8), wasserstein(vectors, 1), 1e-5, normaliser="additive")
    assert float(shift.distances.min()) > 745 * 1e-5
    assert not shift.center.any() and not shift.weights.any()


@pytest.mark.parametrize(("far", "left"), [(20, 0.95), (26, 0.05)])
def test_the_additive_normaliser_fades_at_23_eps(far: float, left: float) -> None:
    weights = kernel_weights(torch.full((4,), far, dtype=torch.float64), even(4), 1.0, "additive")
    assert abs(float(weights.sum()) - np.exp(-far) / (np.exp(-far) + 1e-10)) < 1e-12
    assert (float(weights.sum()) > left) == (far < 23)


def test_stopping_early_changes_nothing() -> None:
    vectors = drawn(8, 100) * torch.linspace(0.2, 3, 8, dtype=torch.float64)[:, None]
    for eps in (0.01, 0.1, 1.0):
        shift = mean_shift(vectors, even(8), wasserstein(vectors, 1), eps, iterations=1000)
        b, _ = oracle.mean_shift(vectors.numpy(), eps, shift.iterations + 40)
        assert shift.iterations < 900
        np.testing.assert_allclose(shift.center, b, rtol=0, atol=1e-10)


seeds = st.integers(0, 10_000)
settings_of_shift = {"seed": seeds, "count": st.integers(1, 7), "d": st.integers(1, 30), "log_eps": st.floats(-6, 3)}


@settings(deadline=None)
@given(**settings_of_shift, relative=st.booleans())
def test_the_center_lies_between_the_clients(seed: int, count: int, d: int, log_eps: float, relative: bool) -> None:
    vectors = drawn(count, d, seed=seed)
    shift = mean_shift(vectors, even(count), wasserstein(vectors, 1), 10**log_eps, relative, iterations=20)
    assert abs(float(shift.weights.sum()) - 1) < 1e-9 and (shift.weights >= 0).all()
    assert (shift.center <= vectors.max(0).values + 1e-9).all() and (shift.center >= vectors.min(0).values - 1e-9).all()


@settings(deadline=None)
@given(**settings_of_shift)
def test_permuting_one_clients_entries_leaves_the_first_weights(seed: int, count: int, d: int, log_eps: float) -> None:
    """What W1 sees is a bag of entries: which entry is which is nothing to it."""
    vectors, b = drawn(count, d, seed=seed), drawn(d, seed=seed + 1)
    shuffled = vectors.clone()
    shuffled[0] = shuffled[0][torch.randperm(d, generator=torch.Generator().manual_seed(seed))]
    eps = 10**log_eps
    before, after = (kernel_weights(wasserstein(v, 1)(b), even(count), eps, "softmax") for v in (vectors, shuffled))
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-300)


def test_by_position_a_permutation_tells() -> None:
    vectors, b = drawn(3, 20), drawn(20, seed=1)
    assert not torch.allclose(positional(vectors)(b), positional(vectors.roll(1, 1))(b))
    np.testing.assert_allclose(positional(vectors)(b), np.abs(b.numpy() - vectors.numpy()).mean(1), rtol=1e-13)


@settings(deadline=None, max_examples=30)
@given(seed=seeds, count=st.integers(2, 7), log_scale=st.integers(-8, 8))
@pytest.mark.slow
def test_eps_has_the_unit_of_the_vectors_unless_it_is_relative(seed: int, count: int, log_scale: int) -> None:
    vectors, c = drawn(count, 20, seed=seed), 2.0**log_scale  # a power of two: no rounding differs
    for eps, relative in ((0.1, False), (1.0, True)):
        plain = mean_shift(vectors, even(count), wasserstein(vectors, 1), eps, relative)
        scaled = mean_shift(c * vectors, even(count), wasserstein(c * vectors, 1), eps if relative else c * eps, relative)
        torch.testing.assert_close(scaled.center, c * plain.center, rtol=1e-9, atol=1e-12 * c)


@settings(deadline=None)
@given(**settings_of_shift)
def test_the_order_of_the_clients_is_nothing(seed: int, count: int, d: int, log_eps: float) -> None:
    vectors = drawn(count, d, seed=seed)
    first, other = (
        mean_shift(v, even(count), wasserstein(v, 1), 10**log_eps, iterations=3).weights for v in (vectors, vectors.flip(0))
    )
    torch.testing.assert_close(first, other.flip(0), rtol=1e-5, atol=1e-6)


# --- the server: two true barycentres --------------------------------------------------------------------------------


@settings(deadline=None)
@given(seed=seeds, count=st.integers(1, 6), d=st.integers(1, 40))
def test_quantile_barycentre_averages_sorted_entries(seed: int, count: int, d: int) -> None:
    vectors = drawn(count, d, seed=seed)
    center, mean = quantile_barycenter(vectors, even(count)), vectors.mean(0)
    np.testing.assert_allclose(np.sort(center), np.mean(np.sort(vectors.numpy(), axis=1), axis=0), rtol=1e-12, atol=1e-13)
    assert (center[mean.argsort()].diff() >= 0).all()


def test_the_quantile_barycentre_keeps_the_norm() -> None:
    """3.2 times the mean's, as the clients' own on average, for ten unrelated clients."""
    vectors = drawn(10, 850)
    ratio = float(quantile_barycenter(vectors, even(10)).norm() / vectors.mean(0).norm())
    assert abs(ratio - float(vectors.norm(dim=1).mean() / vectors.mean(0).norm())) < 0.05 and 3 < ratio < 3.4


def test_the_gaussian_barycentre_is_that_of_pot() -> None:
    vectors = drawn(6, 500) * torch.arange(1, 7)[:, None] + torch.arange(6)[:, None]
    weights = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.float64) / 21
    center = gaussian_barycenter(vectors, weights).numpy()
    means, covariances = vectors.mean(1, keepdim=True).numpy(), vectors.var(1, correction=0)[:, None, None].numpy()
    mean, covariance = ot.gaussian.bures_wasserstein_barycenter(means, covariances, weights.numpy())
    np.testing.assert_allclose([center.mean(), center.var()], [float(mean[0]), float(covariance[0, 0])], rtol=1e-6)
    flat = torch.ones(3, 8, dtype=torch.float64)
    assert torch.equal(gaussian_barycenter(flat, even(3)), flat[0])


# --- the server: which tensors ---------------------------------------------------------------------------------------

LENET = [f"{layer}.{kind}" for layer in ("encoder.conv1", "encoder.fc1", "encoder.fc2", "head") for kind in ("weight", "bias")]


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("none", []),
        ("last1_layers", LENET[-2:]),
        ("last2_layers", LENET[-4:]),
        ("last2_tensors", LENET[-2:]),
        ("last3_layers", LENET[-6:]),
        ("first2_layers", LENET[:4]),
        ("all", LENET),
        (("head.weight", "encoder.fc*.bias"), ["encoder.fc1.bias", "encoder.fc2.bias", "head.weight"]),
    ],
)
def test_the_dynamic_tensors(which: Any, names: list[str]) -> None:
    assert dynamic_names(LENET, which) == tuple(names)


def test_layers_are_counted_without_biases_and_norms() -> None:
    layers = ["encoder.conv1.weight", "encoder.bn1.weight", "encoder.bn1.bias", "encoder.conv2.weight", "encoder.bn2.weight"]
    norms = frozenset(name for name in layers if "bn" in name)
    assert dynamic_names([*layers, "head.weight"], "last2_layers", norms) == ("encoder.conv2.weight", "head.weight")


def test_a_pattern_that_fits_nothing_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"'encoder\.fc9' matches no parameter"):
        simulate("feddual", play=False, **{"method.dyn_layers": ["head.*", "encoder.fc9"]})


# --- the method ------------------------------------------------------------------------------------------------------


def options(**given: Any) -> dict[str, Any]:
    overrides = {"method.name": "feddual", **{f"method.{name}": value for name, value in given.items()}}
    return with_options(load_config(None, overrides)).method.params


def test_a_reading_sets_what_is_not_given() -> None:
    plain, paper, code = options(), options(reading="paper"), options(reading="code")
    assert options_of(FedDual)().eps_mode == plain["eps_mode"] == "relative" and plain["eps"] == 1.0
    assert {name: value for name, value in paper.items() if plain[name] != value} == {
        "reading": "paper", "eps_mode": "absolute", "eps": 1e-5
    }  # fmt: skip
    assert (code["server_object"], code["dyn_layers"], code["normaliser"]) == ("lossgrad_sum", "last2_tensors", "additive")
    assert (code["iterations"], code["beta_mode"], code["kl_grad"]) == (1000, "half", False)
    assert options(reading="code", eps=0.1, kl_grad=True) == {**code, "eps": 0.1, "kl_grad": True}
    assert options(**code) == code, "what a run stores is read back as it is"
    assert options_of(FedDual)(reading="code", eps=0.1).eps == 0.1


def last_rows(simulation: Simulation) -> Tensor:
    return simulation.state.row


def test_a_wide_kernel_is_uniform_fedavg(simulate: Simulate) -> None:
    """The bandwidth eps is 1e9: all weights are equal."""
    same: dict[str, Any] = {"objective.name": "cross-entropy", "train.rounds": 2}
    wide = simulate("feddual", **same, **{"method.eps": 1e9, "method.eps_mode": "absolute"})
    plain = simulate("fedavg", **UNIFORM, **same)
    torch.testing.assert_close(last_rows(wide), last_rows(plain), rtol=0, atol=1e-6)
    narrow = simulate("feddual", **same)
    assert float((last_rows(narrow) - last_rows(plain)).abs().max()) > 1e-4


def test_without_dynamic_layers_it_is_uniform_fedavg_bitwise(simulate: Simulate) -> None:
    same: dict[str, Any] = {"objective.name": "cross-entropy", "train.rounds": 2, "train.participation": 1.0}
    none = simulate("feddual", **same, **{"method.dyn_layers": "none"})
    assert torch.equal(last_rows(none), last_rows(simulate("fedavg", **UNIFORM, **same)))


@pytest.mark.slow
def test_each_half_can_be_switched_off(simulate: Simulate) -> None:
    """Table 2: adaptive loss only, dynamic aggregation only; each is neither FedAvg nor both, unless its effect is removed."""
    none = simulate("fedavg", **UNIFORM)
    adaptive = simulate("feddual", **{"aggregation.name": "mean", "aggregation.weights": "uniform"})
    dynamic = simulate("feddual", **{"objective.name": "cross-entropy"})
    both = simulate("feddual")
    rows = [last_rows(simulation) for simulation in (none, adaptive, dynamic, both)]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])
    apart = simulate("fedavg", **{"objective.name": "adaptive-kl", **UNIFORM})
    assert torch.equal(last_rows(apart), last_rows(adaptive)), "a part is the same under another method"
    alone = simulate("fedavg", **{"aggregation.name": "mean-shift"})
    assert torch.equal(last_rows(alone), last_rows(dynamic))


def masked(simulate: Simulate, **overrides: Any) -> Simulation:
    """FedAvg whose global head stays as it was: clients train a head, and what they trained is discarded."""
    return simulate("fedavg", **UNIFORM, **{"wire.transforms": [{"name": "mask", "roles": ["head"]}]}, **overrides)


@pytest.mark.filterwarnings("ignore:mean-shift")
def test_released_code_is_fedavg_with_a_frozen_head_bitwise(simulate: Simulate) -> None:
    """Gradients far apart, so that b is zero."""
    code = simulate("feddual", **{"method.reading": "code", "objective.name": "cross-entropy", **ADAM})
    control = masked(simulate, **ADAM)
    assert torch.equal(last_rows(code), last_rows(control))
    space, initial = code.federation.resident.space, code.federation.initial
    for name in space.names:
        assert torch.equal(space.view(last_rows(code), name), space.view(initial, name)) == (space[name].role == "head")
    metrics = code.folder.records()[-1]["metrics"]
    assert metrics["mean_shift/head.weight/step_ratio"] == 0 and metrics["mean_shift/head.weight/effective_clients"] == 0
    assert metrics["mean_shift/head.weight/distance_min"] > 745 * 1e-5
    assert not torch.equal(last_rows(code), last_rows(simulate("fedavg", **UNIFORM, **ADAM)))


@pytest.mark.filterwarnings("ignore:mean-shift")
def test_beta_of_one_half_is_half_the_learning_rate_bitwise(simulate: Simulate) -> None:
    """The code reading with its own objective: under SGD a factor of 1/2 is exact."""
    plain = {"train.weight_decay": 0.0, "train.momentum": 0.5}
    code = simulate("feddual", **{"method.reading": "code", **plain, "train.lr": 0.0625})
    assert torch.equal(last_rows(code), last_rows(masked(simulate, **{**plain, "train.lr": 0.03125})))


def test_the_code_reading_warns_that_it_leaves_the_head(simulate: Simulate) -> None:
    with pytest.warns(UserWarning, match=r"mean-shift: all distances.*leaves head\.weight unchanged"):
        simulate("feddual", **{"method.reading": "code", "train.rounds": 1})


def test_code_reading_moves_the_head_where_eps_lets_it(simulate: Simulate) -> None:
    code = simulate("feddual", **{"method.reading": "code", "train.rounds": 1, "method.eps": 1e3})
    space, before = code.federation.resident.space, code.federation.initial
    assert not torch.equal(space.view(last_rows(code), "head.weight"), space.view(before, "head.weight"))


def uploaded(simulation: Simulation) -> list[Sealed]:
    uploads: list[Sealed] = []
    simulation.taps.append(lambda way, sealed: uploads.append(sealed) if way == "up" else None)
    simulation.run_round()
    return uploads


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_gradient_that_is_sent_is_of_the_trained_model(simulate: Simulate, reduction: str) -> None:
    simulation = simulate("feddual", play=False, **{"method.server_object": f"lossgrad_{reduction}"})
    uploads = uploaded(simulation)
    fed = simulation.federation
    for sealed in uploads:
        tensors = sealed.tensors()
        names = {tensor_of(name) for name in tensors if name.startswith("statistic.")}
        assert names == set(fed.method.aggregation.dynamic)
        net, (x, y) = fed.resident.frozen, fed.data.train(sealed.client)
        net.space.pack(tensors, net.row)
        weight = net.net.head.weight.requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(net.net(x).logits, y, reduction=reduction)
        (gradient,) = torch.autograd.grad(loss, weight)
        weight.requires_grad_(False)
        torch.testing.assert_close(tensors["statistic.gradient/head.weight"], gradient, rtol=1e-4, atol=1e-5)


def test_a_mask_hides_the_gradient_with_its_tensor(simulate: Simulate) -> None:
    head = {"wire.transforms": [{"name": "mask", "roles": ["head"]}], "method.server_object": "lossgrad_mean"}
    simulation = simulate("feddual", play=False, **head)
    assert all("head" not in name for sealed in uploaded(simulation) for name in sealed.schema)
    other = {"wire.transforms": [{"name": "mask", "names": ["statistic.*"]}], "method.server_object": "lossgrad_mean"}
    with pytest.raises(UsageError, match=r"needs statistic\.gradient/.*did not send it"):
        simulate("feddual", **other)


def test_a_private_heads_gradient_stays_private(simulate: Simulate) -> None:
    own = {"aggregation.name": "mean-shift", "aggregation.server_object": "lossgrad_sum", "aggregation.dyn_layers": "all"}
    simulation = simulate("fedper", play=False, **own)
    sent = {name for sealed in uploaded(simulation) for name in sealed.schema}
    assert any("statistic.gradient/encoder" in name for name in sent)
    assert not any("head" in name or "projector" in name for name in sent)


def uploads_of(simulation: Simulation, rows: Tensor, **others: Any) -> Uploads:
    count = len(rows)
    facts: dict[str, Any] = {
        "examples": [1] * count, "statistics": [{}] * count, "clients": list(range(count)), "round": 1, "registered": 10
    }  # fmt: skip
    return Uploads(simulation.federation.resident.space, rows, simulation.federation.initial, **{**facts, **others})


def test_merge_overwrites_the_dynamic_tensors_alone(simulate: Simulate) -> None:
    simulation = simulate("feddual", play=False, **{"model.name": "mlp2", "model.projection": 8})
    fed, space = simulation.federation, simulation.federation.resident.space
    rows = fed.initial + drawn(5, space.size, scale=0.01).float()
    merged = fed.method.aggregation.merge(uploads_of(simulation, rows), {})
    for name in space.names:
        previous, sent = space.view(fed.initial, name), torch.stack([space.view(row, name) for row in rows])
        if name not in fed.method.aggregation.dynamic:
            torch.testing.assert_close(space.view(merged.row, name), sent.mean(0), rtol=1e-6, atol=1e-8)
            continue
        v = (previous - sent).flatten(1).double().numpy()
        median = float(np.median([wasserstein_distance(v.mean(0), row) for row in v]))
        b, w = oracle.mean_shift(v, median, 200)
        expected = previous.double().flatten() - torch.from_numpy(b)
        torch.testing.assert_close(space.view(merged.row, name).flatten().double(), expected, rtol=1e-6, atol=1e-7)
        assert merged.report[f"mean_shift/{name}/effective_clients"] == pytest.approx(1 / (w**2).sum(), rel=1e-6)
        ratio = np.linalg.norm(b) / np.linalg.norm(v.mean(0))
        assert merged.report[f"mean_shift/{name}/step_ratio"] == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize("barycentre", ["ms_w1", "ms_w2", "ms_pos", "wb_quantile", "wb_gauss", "wb_neurons"])
@pytest.mark.parametrize("server_object", ["delta", "weights"])
def test_every_center_leaves_identical_clients_alone(simulate: Simulate, barycentre: str, server_object: str) -> None:
    given = {"method.barycentre": barycentre, "method.server_object": server_object, "method.dyn_layers": "all"}
    simulation = simulate("feddual", play=False, **given)
    fed = simulation.federation
    rows = (fed.initial + drawn(1, fed.resident.space.size, scale=0.01).float()).repeat(3, 1)
    merged = fed.method.aggregation.merge(uploads_of(simulation, rows), {})
    torch.testing.assert_close(merged.row, rows[0], rtol=1e-5, atol=1e-7)


def test_a_part_of_the_step(simulate: Simulate) -> None:
    whole, part, nothing = (simulate("feddual", play=False, **{"method.dyn_lr": lr}) for lr in (1.0, 0.5, 0.0))
    space = whole.federation.resident.space
    rows = whole.federation.initial + drawn(4, space.size, scale=0.01).float()
    merged = [
        simulation.federation.method.aggregation.merge(uploads_of(simulation, rows), {}).row
        for simulation in (whole, part, nothing)
    ]
    initial, name = space.view(whole.federation.initial, "head.weight"), "head.weight"
    steps = [space.view(row, name) - initial for row in merged]
    torch.testing.assert_close(steps[1], steps[0] / 2, rtol=1e-4, atol=1e-8)
    assert not steps[2].any()


def test_samples_as_base_weights(simulate: Simulate) -> None:
    given = {"method.weights": "samples", "method.eps": 1e9, "method.eps_mode": "absolute"}
    simulation = simulate("feddual", play=False, **given)
    rows = simulation.federation.initial + drawn(3, simulation.federation.resident.space.size, scale=0.01).float()
    merged = simulation.federation.method.aggregation.merge(uploads_of(simulation, rows, examples=[1, 1, 6]), {})
    expected = rows.double().T @ torch.tensor([0.125, 0.125, 0.75], dtype=torch.float64)
    torch.testing.assert_close(merged.row.double(), expected, rtol=1e-5, atol=1e-6)


def test_same_seed_same_clients_and_batches_for_all_methods(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each method draws its clients and its batches from the same streams."""
    streams: list[str] = []
    randperm = torch.randperm

    def noted(n: int, *, generator: torch.Generator) -> Tensor:
        order: Tensor = randperm(n, generator=generator)
        digest.update(order.numpy().tobytes())
        return order

    for method in ("fedavg", "feddual"):
        digest = hashlib.sha256()
        simulation = simulate(method, play=False)
        monkeypatch.setattr(torch, "randperm", noted)
        for _ in simulation.rounds():
            pass
        monkeypatch.setattr(torch, "randperm", randperm)
        streams.append(digest.hexdigest())
    assert streams[0] == streams[1]


def test_sample_level_dp_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"adaptive-kl.*accuracy on the client's data"):
        simulate("feddual", play=False, **{"privacy.level": "sample", "privacy.noise": 1.0})


def test_halves_have_names_that_are_not_the_nets() -> None:
    assert MeanShift.name == "mean-shift" and FedDual.objective_class.name == "adaptive-kl"
