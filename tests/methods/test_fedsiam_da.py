"""The client part of FedSiam-DA: against the independent slow version, its identities, and its edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.config import load_config, parse_assignment
from fedpriv.data.federated import Split
from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, LocalUpdate, Loss
from fedpriv.methods.base import phase
from fedpriv.methods.build import with_options
from fedpriv.objectives.siamese import PREVIOUS, mean_cosine
from fedpriv.seeding import generator
from fedpriv.simulation.simulation import Simulation
from tests.conftest import simulated
from tests.marks import quick_first
from tests.oracles import siamese as oracle

Simulate = Callable[..., Simulation]

SHORT: dict[str, Any] = {
    "model.name": "mlp2",
    "model.projection": 16,
    "model.predictor": 8,
    "data.limit": 160,
    "data.clients": 4,
    "train.participation": 0.5,
    "train.batch_size": 16,
    "train.local_epochs": 2,
    "train.lr": 0.01,  # beyond, a rectifier that switches in one precision and not in the other parts the two
    "train.momentum": 0.5,
    "train.weight_decay": 1e-2,
    "train.weight_decay_bias": 1e-3,
    "eval.every": 9,
    "eval.last": 1,
}
MU = {"method.mu": 0.9}
UNIFORM = {"aggregation": {"name": "mean", "weights": "uniform"}}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Simulate:
    """``played(history="round")``: a run with options of the method; each is played once. Do not go on with it."""
    simulations: dict[str, Simulation] = {}

    def get(**options: Any) -> Simulation:
        key = str(options)
        if key not in simulations:
            given = {**SHORT, **MU, **{name if "." in name else f"method.{name}": value for name, value in options.items()}}
            simulations[key] = simulated(tmp_path_factory.mktemp("played"), "fedsiam-da", **given)
        return simulations[key]

    return get


def by_the_oracle(simulation: Simulation, **options: Any) -> tuple[nn.Module, dict[int, nn.Module]]:
    fed, train = simulation.federation, simulation.config.train
    fed.resident.frozen.row.copy_(fed.initial)

    def batches(round: int, client: int) -> list[list[Tensor]]:
        draw = generator(simulation.config.seed, round, client, "train", 1, "shuffle")
        size = fed.data.size(client)
        return [list(torch.randperm(size, generator=draw).split(train.batch_size)) for _ in range(train.local_epochs)]

    setting = oracle.Setting(
        lr=train.lr, momentum=train.momentum, wd=train.weight_decay, wd_bias=train.weight_decay_bias, **options
    )
    clients = [tuple(fed.data.train(i)) for i in range(simulation.config.data.clients)]
    rounds = [sorted(simulation.participants(t)) for t in range(1, train.rounds + 1)]
    return oracle.run(fed.resident.frozen.net, clients, rounds, batches, setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "slow"),
    [
        ({}, {"pull": 0.45, "push": 0.9}),
        pytest.param({"history": "round"}, {"pull": 0.45, "push": 0.9, "history": "round"}, marks=pytest.mark.slow),
        pytest.param({"history": "step"}, {"pull": 0.45, "push": 0.9, "history": "step"}, marks=pytest.mark.slow),
        pytest.param({"history": "none"}, {"pull": 0.45, "push": 0.0}, marks=pytest.mark.slow),
        pytest.param({"order": "simultaneous"}, {"pull": 0.45, "push": 0.9, "simultaneous": True}, marks=pytest.mark.slow),
        pytest.param({"anchor": "frozen"}, {"pull": 0.45, "push": 0.9, "frozen_anchor": True}, marks=pytest.mark.slow),
        pytest.param({"local_init": "persistent"}, {"pull": 0.45, "push": 0.9, "persistent": True}, marks=pytest.mark.slow),
        pytest.param({"loss_grouping": "eq11", "mu": 0.4}, {"pull": 0.5, "push": 0.4}, marks=pytest.mark.slow),
        pytest.param({"loss_grouping": "eq5"}, {"pull": 0.45, "push": 0.45}, marks=pytest.mark.slow),
        pytest.param({"pull": False}, {"pull": 0.0, "push": 0.9}, marks=pytest.mark.slow),
        pytest.param(
            {"model.head_on": "features"}, {"pull": 0.45, "push": 0.9, "head_on_features": True}, marks=pytest.mark.slow
        ),
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()) or "default",
)
def test_three_rounds_equal_the_oracle(played: Simulate, method: dict[str, Any], slow: dict[str, Any]) -> None:
    simulation = played(**method)
    updates = [c for t in (1, 2, 3) for c in simulation.participants(t)]
    assert len(set(updates)) < len(updates), "a client took part twice, and met its own last upload"
    server, uploads = by_the_oracle(simulation, **slow)
    space, row = simulation.federation.resident.space, simulation.state.row
    for name, expected in server.state_dict().items():
        if expected.is_floating_point():
            torch.testing.assert_close(space.view(row, name).double(), expected, rtol=1e-4, atol=1e-6, msg=name)
    for client, net in uploads.items():
        kept = simulation.private(client).get(PREVIOUS)
        assert (kept is None) == (slow["push"] == 0)
        if kept is not None:
            expected = dict(net.named_parameters())["projector.fc2.weight"].data
            torch.testing.assert_close(space.view(kept, "projector.fc2.weight").double(), expected, rtol=1e-4, atol=1e-6)


def test_every_option_matters(played: Simulate) -> None:
    """Or the comparison with the oracle would say nothing of it."""
    variants: list[dict[str, Any]] = [
        {},
        {"history": "round"},
        {"history": "step"},
        {"history": "none"},
        {"order": "simultaneous"},
        {"anchor": "frozen"},
        {"local_init": "persistent"},
        {"loss_grouping": "eq11"},
        {"loss_grouping": "eq5"},
        {"pull": False},
        {"push": False, "pull": False},
        {"model.head_on": "features"},
    ]
    rows = [played(**options).state.row for options in variants]
    for i, row in enumerate(rows):
        for j in range(i):
            assert row.shape != rows[j].shape or float((row - rows[j]).abs().max()) > 1e-5, (variants[i], variants[j])


# --- identities ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", quick_first([{"method.mu": 0.0}, {"method.pull": False, "method.push": False}]))
def test_without_its_terms_it_is_uniform_fedavg(simulate: Simulate, off: dict[str, Any]) -> None:
    plain = simulate("fedavg", **SHORT, **{"method.weights": "uniform", "train.min_batch": 2})
    ours = simulate("fedsiam-da", **SHORT, **UNIFORM, **off)
    assert torch.equal(plain.state.row, ours.state.row)
    other = simulate("fedsiam-da", **SHORT, **UNIFORM, **{"method.mu": 0.1})
    assert not torch.equal(plain.state.row, other.state.row)


def test_no_client_is_pushed_at_its_first_update(simulate: Simulate) -> None:
    short = {**SHORT, **UNIFORM, "method.pull": False, "train.local_epochs": 1}
    pushed, not_pushed = (
        simulate("fedsiam-da", play=False, **{**short, "method.push": push, "train.participation": 1.0}) for push in (True, False)
    )
    same = []
    for _ in range(2):
        for simulation in (pushed, not_pushed):
            simulation.run_round()
        same.append(torch.equal(pushed.state.row, not_pushed.state.row))
    assert same == [True, False]


def test_with_one_epoch_the_history_is_the_round_befores(simulate: Simulate) -> None:
    """Eq. 3 is eq. 10 with M = 1."""
    options = {**SHORT, "train.local_epochs": 1, "method.mu": 1.0}
    by_epoch, by_round = (simulate("fedsiam-da", **options, **{"method.history": h}) for h in ("epoch", "round"))
    assert torch.equal(by_epoch.state.row, by_round.state.row)


def test_it_is_its_two_halves(simulate: Simulate) -> None:
    whole, parts = simulate("fedsiam-da", **SHORT), simulate("fedavg", **SHORT, objective="siamese", aggregation="dual")
    assert torch.equal(whole.state.row, parts.state.row)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["dual", {"name": "mean", "weights": "uniform"}, {"name": "mean", "weights": "samples"}])
def test_the_cells_of_the_ablation(simulate: Simulate, aggregation: Any) -> None:
    """{cross-entropy, + pull, + push, + both} under each aggregation."""
    options = {**SHORT, "aggregation": aggregation, "train.rounds": 2}
    options["data.partition.name"] = "lognormal"
    rows = [
        simulate("fedsiam-da", **options, **{"method.pull": pull, "method.push": push}).state.row
        for pull in (False, True)
        for push in (False, True)
    ]
    assert all(not torch.equal(rows[i], rows[j]) for i in range(4) for j in range(i))


# --- a step --------------------------------------------------------------------------------------------------------------


def a_update(simulation: Simulation, private: dict[str, Tensor], samples: int | None = None) -> ModelLocalUpdate:
    fed = simulation.federation
    fed.resident.row.copy_(fed.initial)
    data = fed.data.train(0)
    if samples is not None:
        data = Split(data.inputs[:samples], data.labels[:samples])
    return ModelLocalUpdate(fed.resident, data, fed.config, 2, 0, {}, private, not private)


def trained(simulation: Simulation, update: ModelLocalUpdate, epochs: int = 1) -> ModelLocalUpdate:
    method = simulation.federation.method
    method.begin(update)
    update.train(phase(epochs=epochs), method.local_loss, method.objective)
    return update


def test_gradients_go_where_they_should(simulate: Simulate) -> None:
    """The step of L leaves no gradient in A and H, that of A none in L; nor has A's classifier any."""
    simulation = simulate("fedsiam-da", play=False, **SHORT)
    fed, space = simulation.federation, simulation.federation.resident.space
    update = a_update(simulation, {PREVIOUS: fed.initial + 0.1})
    objective, seen = fed.method.objective, []

    class Spied:
        views, batches_per_step, smallest_batch, uses_companion = 1, 1, 2, True
        epoch, correct = objective.epoch, objective.correct

        def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
            resident, other, frozen = fed.resident, fed.resident.companion, fed.resident.frozen

            def spied(step: Any) -> Tensor:
                seen.append((resident.grad.clone(), other.grad.clone()))
                return loss(step)

            before = resident.grad.clone()
            value = objective.step(update, batch, spied)
            of_local, of_anchor = seen[-1]
            assert torch.equal(of_local, before), "the anchor's step came first, and gave L nothing"
            assert torch.equal(of_anchor, other.grad), "L's step gave the anchor nothing"
            assert not torch.equal(resident.grad, before) and of_anchor.any()
            assert not any(p.requires_grad for p in frozen.net.parameters()) and not frozen.grad.any()
            for name in ("head.weight", "head.bias"):
                assert not space.view(of_anchor, name).any()
            for name in ("predictor.fc2.weight", "encoder.fc1.weight", "projector.fc1.weight"):
                assert space.view(of_anchor, name).any()
            return value

    fed.method.begin(update)
    update.train(phase(epochs=1), fed.method.local_loss, Spied())
    assert len(seen) == -(-update.num_examples // SHORT["train.batch_size"])


def test_the_anchor_draws_nothing_of_the_local_models(simulate: Simulate) -> None:
    """With dropout, the global generator stands after a step where it would without an anchor."""
    states = []
    for pull in (True, False):
        simulation = simulate("fedsiam-da", play=False, **SHORT, **{"method.pull": pull})
        encoder = simulation.federation.resident.net.encoder
        assert isinstance(encoder, nn.Sequential)
        encoder.append(nn.Dropout(0.5))
        update = a_update(simulation, {})
        objective, ends = simulation.federation.method.objective, list[Tensor]()
        plain_step = objective.step

        def step(update: LocalUpdate, batch: Batch, loss: Loss, plain: Any = plain_step, ends: list[Tensor] = ends) -> Tensor:
            before = torch.get_rng_state()
            value: Tensor = plain(update, batch, loss)
            ends.append(torch.get_rng_state())
            assert not torch.equal(ends[-1], before), "dropout draws"
            return value

        objective.step = step  # type: ignore[method-assign]
        trained(simulation, update)
        states.append(ends)
    assert len(states[0]) == len(states[1]) > 1
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_the_look_at_the_anchor_leaves_its_statistics(simulate: Simulate) -> None:
    """A frozen anchor stays the received model, running statistics included; one that learns does not."""
    for anchor, moves in (("frozen", False), ("trained", True)):
        simulation = simulate("fedsiam-da", play=False, **SHORT, **{"method.anchor": anchor})
        update = trained(simulation, a_update(simulation, {}))
        assert torch.equal(update.model.companion.row, update.start) != moves


def test_a_batch_of_one_is_left_out(simulate: Simulate) -> None:
    simulation = simulate("fedsiam-da", play=False, **SHORT)
    assert trained(simulation, a_update(simulation, {}, samples=17)).steps == 1
    lonely = trained(simulation, a_update(simulation, {}, samples=1))
    assert lonely.steps == 0 and torch.equal(lonely.row, lonely.start)
    assert torch.equal(simulation.federation.method.keep(lonely)[PREVIOUS], lonely.start)


@pytest.mark.slow
def test_fine_tuning_and_layered_methods_take_the_objective(simulate: Simulate) -> None:
    for method in ("fedavg-ft", "fedper", "fedrep"):
        simulation = simulate(method, **SHORT, objective="siamese", **{"train.rounds": 2})
        assert torch.isfinite(simulation.state.row).all()


@pytest.mark.parametrize("history", ["epoch", "round", "step", "none"])
def test_readings_of_the_history_can_be_set_on_the_command_line(history: str) -> None:
    """YAML reads some words as something else (off is false)."""
    key, value = parse_assignment(f"method.history={history}")
    config = with_options(load_config(None, {"method.name": "fedsiam-da", key: value}))
    assert config.method.params["history"] == history


def test_a_net_without_a_projector_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"objective siamese needs a projector.*model\.projection=128"):
        simulate("fedsiam-da", play=False, **{**SHORT, "model.projection": None})


def test_a_predictor_of_64_is_suggested_and_can_be_another(simulate: Simulate) -> None:
    widths = [
        simulate(
            "fedsiam-da", play=False, **{**SHORT, "model.predictor": given}
        ).federation.resident.net.predictor.fc1.out_features  # type: ignore[union-attr]
        for given in (None, 8)
    ]
    assert widths == [64, 8]


def test_the_record_says_how_alike_the_models_are(simulate: Simulate) -> None:
    simulation = simulate("fedsiam-da", **{**SHORT, "train.participation": 1.0})
    first, last = (simulation.folder.records()[i]["metrics"] for i in (1, -1))
    for record in (first, last):
        assert -1 <= record["siamese/cosine_anchor"] <= 1 and 0 <= record["siamese/spread"] <= 1
        assert 0 <= record["dual/tv"] < 0.05 and 0 < record["dual/moved"] < 0.01
    assert -1 <= last["siamese/cosine_past"] <= 1


def test_a_cosine_with_nothing_is_zero() -> None:
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    value = mean_cosine(z, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert float(value.detach()) == pytest.approx(0.3)
    value.backward()
    assert z.grad is not None and torch.isfinite(z.grad).all()
