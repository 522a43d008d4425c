"""FedNova: step weights, the merge, and runs against a slow version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.aggregation import Uploads, find_aggregation
from fedpriv.aggregation.fednova import STEP_WEIGHT, STEPS, step_weight
from fedpriv.errors import UsageError
from fedpriv.interfaces import Context
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation.simulation import Simulation
from tests.marks import quick_first
from tests.methods.against_oracle import RAGGED, replay, same, world
from tests.oracles import global_baselines as oracles

Simulate = Callable[..., Simulation]


@pytest.mark.parametrize("tau", [0, 1, 2, 7, 100])
def test_step_weights_are_what_a_constant_gradient_amounts_to(tau: int) -> None:
    def amount(momentum: float, pull: float) -> float:
        x = v = 0.0
        for _ in range(tau):
            v = momentum * v + 1 - pull * x
            x += v
        return x

    assert step_weight(tau) == tau
    assert step_weight(tau, momentum=0.9) == pytest.approx(amount(0.9, 0), rel=1e-10, abs=1e-10)
    assert step_weight(tau, pull=0.01) == pytest.approx(amount(0, 0.01), rel=1e-10)
    assert step_weight(tau, pull=0.01) == pytest.approx((1 - 0.99**tau) / 0.01, rel=1e-10, abs=1e-10)


def test_step_weights_by_hand() -> None:
    assert step_weight(2, momentum=0.5) == pytest.approx(2.5, abs=1e-12)  # 1, then 1.5
    assert step_weight(3, pull=0.5) == pytest.approx(1.75, abs=1e-12)  # 1, 1.5, 1.75
    with pytest.raises(ValueError, match="together"):
        step_weight(2, momentum=0.5, pull=0.5)


@pytest.fixture(scope="module")
def three() -> Any:
    """The aggregation on a model of three entries."""
    space = ParameterSpace.of(torch.nn.ModuleDict({"head": torch.nn.Linear(2, 1)}))
    kind = find_aggregation("fednova")
    aggregation = kind(kind.Params(), Context(None, space, 1, 1, lambda label: None, lambda name: None))  # type: ignore[arg-type]

    def make(rows: Any, reach: Sequence[float], examples: Sequence[int], previous: Any = (0.0, 0.0, 0.0)) -> Any:
        matrix = torch.tensor(rows, dtype=torch.float64)
        statistics = [{STEP_WEIGHT: torch.tensor(a, dtype=torch.float64)} for a in reach]
        at = torch.tensor(previous, dtype=torch.float64)
        clients = range(len(matrix))
        return aggregation.merge(Uploads(space, matrix, at, examples, statistics, clients, 1, len(matrix)), {})

    return make


def test_ragged_steps_by_hand(three: Any) -> None:
    """p = (.25, .75), a = (2, 6): tau_eff = 5, effective weights (.625, .625), their sum 1.25."""
    merged = three([[1.0, 0.0, 2.0], [0.0, 4.0, 2.0]], [2, 6], [10, 30])
    assert merged.row.tolist() == pytest.approx([0.625, 2.5, 2.5], abs=1e-12)
    assert merged.report["fednova/tau_eff"] == pytest.approx(5)
    assert merged.report["fednova/weight_sum"] == pytest.approx(1.25)
    assert merged.report["fednova/weight_max"] == pytest.approx(0.625)
    moved = three([[2.0, 1.0, 3.0], [1.0, 5.0, 3.0]], [2, 6], [10, 30], previous=(1.0, 1.0, 1.0))
    assert moved.row.tolist() == pytest.approx([1.625, 3.5, 3.5], abs=1e-12)


def test_steps_in_place_of_step_weights_by_hand() -> None:
    """p = (.25, .75), a = (2, 6), steps (4, 8): tau_eff = 7, effective weights (.875, .875)."""
    space = ParameterSpace.of(torch.nn.ModuleDict({"head": torch.nn.Linear(2, 1)}))
    kind = find_aggregation("fednova")
    context = Context(None, space, 1, 1, lambda label: None, lambda name: None)  # type: ignore[arg-type]
    sent = [{STEP_WEIGHT: torch.tensor(a), STEPS: torch.tensor(steps)} for a, steps in ((2.0, 4), (6.0, 8))]
    rows, zeros = torch.tensor([[1.0, 0.0, 2.0], [0.0, 4.0, 2.0]], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    server_part = kind(kind.Params(tau="steps"), context)
    merged = server_part.merge(Uploads(space, rows, zeros, [10, 30], sent, range(2), 1, 2), {})
    assert merged.row.tolist() == pytest.approx([0.875, 3.5, 3.5], abs=1e-12) and merged.report["fednova/tau_eff"] == 7
    masked = [{STEP_WEIGHT: statistics[STEP_WEIGHT]} for statistics in sent]
    with pytest.raises(UsageError, match=r"tau=steps needs statistic\.steps of every client"):
        server_part.merge(Uploads(space, rows, zeros, [10, 30], masked, range(2), 1, 2), {})
    with pytest.raises(UsageError, match="use tau=step_weights"):
        server_part.addend(sent[0], {}, 1.0)


def test_tau_options_agree_without_a_proximal_term(simulate: Simulate) -> None:
    def moved(**options: Any) -> torch.Tensor:
        simulation = simulate("fednova", **RAGGED, **{"train.rounds": 1, "train.momentum": 0.0, **options})
        return simulation.state.row - simulation.federation.initial

    steps = {"method.tau": "steps"}
    assert torch.equal(moved(), moved(**steps))
    proximal = {"objective.name": "fedprox", "objective.mu": 5.0}
    assert moved(**proximal).norm() < moved(**proximal, **steps).norm()


def test_a_client_without_a_step_is_left_out(three: Any) -> None:
    alone = three([[1.0, 2.0, 3.0]], [4], [10])
    beside = three([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], [4, 0], [10, 90])
    assert torch.equal(alone.row, beside.row) and alone.row.tolist() == pytest.approx([1, 2, 3])
    assert three([[0.0, 0.0, 0.0]], [0], [10]).row.tolist() == [0, 0, 0]


numbers = st.floats(-10, 10)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 6))
def test_equal_steps_are_fedavg_and_order_does_not_matter(three: Any, data: st.DataObject, count: int) -> None:
    rows = data.draw(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=count, max_size=count))
    n = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    reach = data.draw(st.lists(st.integers(1, 500), min_size=count, max_size=count))
    previous = tuple(data.draw(st.lists(numbers, min_size=3, max_size=3)))
    matrix, p = torch.tensor(rows, dtype=torch.float64), torch.tensor(n, dtype=torch.float64) / sum(n)
    torch.testing.assert_close(three(rows, [reach[0]] * count, n, previous).row, p @ matrix, rtol=1e-9, atol=1e-9)
    forward, backward = three(rows, reach, n, previous), three(rows[::-1], reach[::-1], n[::-1], previous)
    torch.testing.assert_close(forward.row, backward.row, rtol=1e-9, atol=1e-7)
    for row in rows:  # identical uploads move along their common change
        alike = three([row] * count, reach, n, previous)
        change = alike.row - torch.tensor(previous, dtype=torch.float64)
        total = alike.report["fednova/weight_sum"]
        expected = total * (torch.tensor(row, dtype=torch.float64) - torch.tensor(previous, dtype=torch.float64))
        torch.testing.assert_close(change, expected, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "expected"),
    quick_first(
        [
            ({"train.momentum": 0.0}, {"mu": 0.0}),
            ({"train.momentum": 0.9, "method.server_momentum": 0.5}, {"mu": 0.0, "server_momentum": 0.5}),
            ({"train.momentum": 0.9, "method.weights": "uniform"}, {"mu": 0.0, "uniform": True}),
            ({"train.momentum": 0.0, "objective": {"name": "fedprox", "mu": 0.5}}, {"mu": 0.5}),
        ]
    ),
)
def test_three_rounds_equal_the_oracle(simulate: Simulate, options: dict[str, Any], expected: dict[str, Any]) -> None:
    simulation = simulate("fednova", **RAGGED, **options)
    slow = replay(simulation, oracles.fednova, **{"uniform": False, "server_momentum": 0.0, **expected})
    same(simulation, slow.model)
    steps = {len(world(simulation).batches(1, client)) for client in simulation.participants(1)}
    assert len(steps) > 1, "the clients take different numbers of steps"


def test_clients_with_equal_steps_make_it_fedavg(simulate: Simulate) -> None:
    shared = {"train.local_steps": 4}
    fedavg, fednova = simulate("fedavg", **shared), simulate("fednova", **shared)
    torch.testing.assert_close(fedavg.state.row, fednova.state.row, rtol=1e-5, atol=1e-6)


def test_adams_steps_are_counted(simulate: Simulate) -> None:
    simulation = simulate("fednova", play=False, **RAGGED, **{"train.optimizer": "adam", "train.lr": 1e-3})
    seen: dict[int, float] = {}
    simulation.taps.append(
        lambda way, sealed: seen.update({sealed.client: float(sealed.tensors()[STEP_WEIGHT])}) if way == "up" else None
    )
    simulation.run_round()
    slow = world(simulation)
    assert seen == {client: len(slow.batches(1, client)) for client in simulation.participants(1)}


def test_only_phases_of_what_is_shared_count(simulate: Simulate) -> None:
    """FedRep's head epochs do not move the encoder that is averaged."""
    options = {"method.head_epochs": 3, "train.momentum": 0.0, "aggregation": "fednova"}
    simulation = simulate("fedrep", play=False, **RAGGED, **options)
    seen: dict[int, float] = {}
    simulation.taps.append(
        lambda way, sealed: seen.update({sealed.client: float(sealed.tensors()[STEP_WEIGHT])}) if way == "up" else None
    )
    simulation.run_round()
    slow = world(simulation)
    assert seen == {client: len(slow.batches(1, client)) for client in simulation.participants(1)}


def test_momentum_and_a_proximal_term_are_refused_together(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"momentum 0\.5 and a proximal term together; use train\.momentum=0"):
        simulate("fednova", objective="fedprox")


def test_a_masked_step_weight_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"fednova needs statistic\.step_weight"):
        simulate("fednova", **{"wire.transforms": [{"name": "mask", "names": ["statistic.*"]}]})
