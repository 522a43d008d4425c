"""perfedavg, apfl, ditto: against a slow oracle, their identities, and what they send and keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.config import load_config
from fedpriv.data.federated import Split
from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, Learner
from fedpriv.methods.apfl import ALPHA, LAST, PERSONAL
from fedpriv.methods.ditto import PERSONAL as DITTO
from fedpriv.objectives.apfl import mixed
from fedpriv.seeding import generator
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Sealed
from tests.marks import slow_but
from tests.methods.test_baselines import central_sgd
from tests.oracles import personal

Simulate = Callable[..., Simulation]
TINY: dict[str, Any] = {
    "model.projection": 16,
    "train.weight_decay": 1e-2,
    "data.clients": 20,
    "data.limit": 600,
    "train.batch_size": 16,
}
ALL_TAKE_PART: dict[str, Any] = {"train.participation": 1.0, "data.clients": 4, "model.projection": 16, "train.batch_size": 50}


def smooth(simulation: Simulation, play: bool = True) -> Simulation:
    """The same net with softplus for ReLU, which has a Hessian everywhere and no kinks that float32 may cross."""
    net = simulation.federation.resident.net
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.ReLU):
                setattr(parent, name, torch.nn.Softplus())
    for _ in simulation.rounds() if play else ():
        pass
    return simulation


def orders(simulation: Simulation, size: int) -> personal.Batches:
    def batches(round: int, client: int, phase: int, epochs: int) -> list[Tensor]:
        draw = generator(simulation.config.seed, round, client, "train", phase, "shuffle")
        n = simulation.federation.data.size(client)
        return [index for _ in range(epochs) for index in torch.randperm(n, generator=draw).split(size)]

    return batches


def told_by_oracle(
    simulation: Simulation, epochs: int, batch: int, **options: Any
) -> tuple[personal.Model, dict[int, personal.Model], dict[int, float]]:
    fed, config = simulation.federation, simulation.config
    initial = {name: t.double() for name, t in fed.resident.space.unpack(fed.initial).items()}
    world = personal.World(fed.resident.frozen.net, config.train.lr, config.train.momentum, config.train.weight_decay)
    return personal.run(
        world, initial, [tuple(fed.data.train(i)) for i in range(config.data.clients)],  # type: ignore[misc]
        [sorted(simulation.participants(t)) for t in range(1, config.train.rounds + 1)],
        orders(simulation, batch), config.method.name, epochs, options,
    )  # fmt: skip


def assert_is(simulation: Simulation, row: Tensor, expected: personal.Model, atol: float = 1e-5) -> None:
    for name, value in expected.items():
        actual = simulation.federation.resident.space.view(row, name).double()
        torch.testing.assert_close(actual, value, rtol=2e-4, atol=atol)


# --- the oracle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", slow_but(["first_order"], ["first_order", "hessian_free"]))
def test_perfedavg_equals_the_oracle(simulate: Simulate, variant: str) -> None:
    """The oracle's Hessian is exact, and a large inner rate makes it count."""
    own = {"method.variant": variant, "method.a": 0.5, "method.b": 0.05}
    simulation = smooth(simulate("perfedavg", play=False, **own, **TINY, **{"train.local_epochs": 2, "train.participation": 0.2}))
    parts, own = 3 if variant == "hessian_free" else 2, {"b": 0.05, "second_order": variant == "hessian_free"}
    within = 1e-4 if variant == "hessian_free" else 1e-5  # the difference of gradients loses digits in float32
    expected = told_by_oracle(simulation, 2, 16 * parts, parts=parts, a=0.5, **own)[0]
    assert_is(simulation, simulation.state.row, expected, within)
    others = [{**own, "a": 0.0}, {**own, "a": 0.5, "second_order": False}][: parts - 1]
    for other in others:
        with pytest.raises(AssertionError):
            assert_is(
                simulation, simulation.state.row, told_by_oracle(simulation, 2, 16 * parts, parts=parts, **other)[0], within
            )


@pytest.mark.parametrize("adaptive", slow_but([], [False, True]))
def test_apfl_equals_the_oracle(simulate: Simulate, adaptive: bool) -> None:
    own = {"method.alpha": 0.3, "method.adaptive": adaptive, "method.alpha_lr": 2.0}
    simulation = smooth(simulate("apfl", play=False, **own, **TINY, **{"train.local_epochs": 2, "train.participation": 0.4}))
    server, models, alphas = told_by_oracle(simulation, 2, 16, alpha=0.3, adaptive=adaptive, alpha_lr=2.0)
    assert_is(simulation, simulation.state.row, server)
    assert set(models) == set(simulation.progress.clients)
    twice = [c for c in models if sum(c in simulation.participants(t) for t in (1, 2, 3)) > 1]
    assert twice, "what a client keeps is used again"
    for client, model in models.items():
        kept = simulation.private(client)
        assert_is(simulation, kept[PERSONAL], model)
        assert float(kept[ALPHA]) == pytest.approx(alphas[client], rel=1e-3, abs=1e-6)
    assert (len({round(a, 6) for a in alphas.values()}) > 1) == adaptive


@pytest.mark.parametrize("lam", slow_but([3.0], [0.0, 3.0]))
def test_ditto_equals_the_oracle(simulate: Simulate, lam: float) -> None:
    own = {"method.lam": lam, "method.personal_epochs": 2}
    simulation = smooth(simulate("ditto", play=False, **own, **TINY, **{"train.participation": 0.4}))
    server, models, _ = told_by_oracle(simulation, 1, 16, lam=lam, personal_epochs=2)
    assert_is(simulation, simulation.state.row, server)
    for client, model in models.items():
        assert_is(simulation, simulation.private(client)[DITTO], model)


# --- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "value", "warns"), [("train.lr", 0.2, True), ("method.b", 0.2, False)])
def test_a_rate_that_does_nothing_is_said(tmp_path: Path, key: str, value: float, warns: bool) -> None:
    """Per-FedAvg steps by its own two rates: whatever train.lr is, its numbers are the same."""
    complaints: list[str] = []
    options = {"data.name": "digits", "train.rounds": 1, "tracking.uri": "none", "method.name": "perfedavg", key: value}
    federation = build(load_config(None, options))
    Simulation(federation, RunFolder.create(federation.config, tmp_path), complaints.append).start()
    assert bool(complaints) == warns and all("train.lr = 0.2 has no effect" in text and "method.b" in text for text in complaints)


@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
def test_perfedavg_without_an_inner_step_is_fedavg(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    parts = 3 if variant == "hessian_free" else 2
    same = {"method.weights": "uniform", "model.projection": 16}
    own = {"method.a": 0.0, "method.b": 0.05, "method.variant": variant}
    tried = simulate("perfedavg", **own, **same, **{"train.batch_size": 12})

    from fedpriv.objectives.cross_entropy import CrossEntropy

    plain = CrossEntropy.step

    def on_the_second_part(self: Any, update: Any, batch: Batch, loss: Any) -> Tensor:
        pieces = batch.split(parts)
        return plain(self, update, pieces[1] if len(pieces[-1].labels) else batch, loss)

    monkeypatch.setattr(CrossEntropy, "step", on_the_second_part)
    fedavg = simulate("fedavg", **same, **{"train.batch_size": 12 * parts})
    assert torch.equal(tried.state.row, fedavg.state.row)
    assert not torch.equal(simulate("perfedavg", **{**own, "method.a": 0.1}, **same).state.row, fedavg.state.row)


def test_hessian_free_gradient_has_an_error_of_order_e_squared(simulate: Simulate) -> None:
    """In float64, on one batch: the difference of gradients misses the Hessian-vector product by O(e^2)."""
    missed = []
    for e in (2e-3, 1e-3):
        own = {"method.variant": "hessian_free", "method.e": e, "method.a": 1.0}
        simulation = smooth(simulate("perfedavg", play=False, **TINY, **own), play=False)
        simulation.federation.resident.net.double()
        objective, space = simulation.federation.method.objective, simulation.federation.resident.space
        learner, batch = Double(simulation), DoubleBatch(simulation, torch.arange(27))
        start = learner.row.clone()
        objective.step(DoubleTurn(learner), batch, objective.loss)  # type: ignore[arg-type]
        world = personal.World(simulation.federation.resident.frozen.net, 1.0, 0.0, 0.0)
        w = {name: t.clone() for name, t in space.unpack(start).items()}
        exact = personal.perfedavg(world, w, batch.x, batch.y, [batch.index], 3, 1.0, 1.0, True)
        moved = space.unpack(start - learner.grad)
        missed.append(max(float((moved[name] - exact[name]).abs().max()) for name in exact))
        assert torch.equal(learner.row, start), "the step's own passes leave the model where it was; the optimiser moves it"
    assert missed[0] < 1e-3 and missed[0] / missed[1] == pytest.approx(4, rel=0.2)


class Double:
    """A learner in float64 that notes its gradient and does not move."""

    def __init__(self, simulation: Simulation) -> None:
        fed = simulation.federation
        self.space, self.net = fed.resident.space, fed.resident.net
        self.row, self.grad, self.lr = fed.initial.double(), torch.zeros(self_size := fed.resident.space.size).double(), 1.0
        assert self_size == len(self.row)
        self.trains = frozenset({"encoder", "projector", "head"})

    def backward(self, value: Tensor) -> None:
        names = list(self.leaves)
        gradients = torch.autograd.grad(value, [self.leaves[name] for name in names])
        self.space.pack(dict(zip(names, gradients, strict=True)), self.grad)

    def descend(self) -> None:
        """Not here."""


class DoubleBatch:
    def __init__(self, simulation: Simulation, index: Tensor) -> None:
        self.simulation, self.index = simulation, index
        x, self.y = simulation.federation.data.train(0)
        self.x, self.labels = x.double(), self.y[index]

    def split(self, parts: int) -> list[DoubleBatch]:
        return [DoubleBatch(self.simulation, piece) for piece in self.index.tensor_split(parts)]

    def forward(self, learner: Any) -> Any:
        learner.leaves = {n: t.clone().requires_grad_() for n, t in learner.space.unpack(learner.row).items()}
        outputs = torch.func.functional_call(learner.net, learner.leaves, (self.x[self.index],))
        from fedpriv.interfaces import Step

        return Step(self.labels, outputs, learner.leaves, {}, learner.trains, lambda name: outputs)


class DoubleTurn:
    round = 1

    def __init__(self, learner: Learner | Any) -> None:
        self.learner = learner


def test_apfl_with_alpha_0_is_global_and_with_1_local(simulate: Simulate) -> None:
    fedavg = simulate("fedavg", **ALL_TAKE_PART, **{"method.weights": "uniform"})
    nothing, everything = (simulate("apfl", **ALL_TAKE_PART, **{"method.alpha": alpha}) for alpha in (0.0, 1.0))
    local = simulate("local", **ALL_TAKE_PART, **{"method.epochs": 1})
    for simulation in (nothing, everything):
        assert torch.equal(simulation.state.row, fedavg.state.row), "the global model is that of FedAvg"
    method, space = nothing.federation.method, nothing.federation.resident.space
    for client in range(4):
        tested = space.pack(method.client_state(nothing.state.row, nothing.private(client)), torch.empty(space.size))
        assert torch.equal(tested, fedavg.state.row)
        alone = space.pack(dict(local.private(client)), torch.empty(space.size))
        assert torch.equal(everything.private(client)[PERSONAL], alone)
    accuracy = {s: s.folder.records()[-1]["metrics"]["accuracy"] for s in (fedavg, nothing, everything, local)}
    assert accuracy[nothing] == accuracy[fedavg] and accuracy[everything] == accuracy[local] > accuracy[fedavg]
    assert not torch.equal(simulate("apfl", **ALL_TAKE_PART).private(0)[PERSONAL], everything.private(0)[PERSONAL])


def test_ditto_without_a_pull_is_local_beside_fedavg(simulate: Simulate) -> None:
    fedavg, pulled, ditto = simulate("fedavg"), simulate("ditto"), simulate("ditto", **{"method.lam": 0.0})
    assert torch.equal(ditto.state.row, fedavg.state.row) and torch.equal(pulled.state.row, fedavg.state.row)
    losses = [[r["metrics"].get("train_loss") for r in s.folder.records()] for s in (fedavg, pulled)]
    assert losses[0] == losses[1], "the reported loss is that of the global model"
    for client in ditto.progress.clients:
        updates = [t for t in (1, 2, 3) if client in ditto.participants(t)]
        alone = second_phase(ditto, client, updates)
        assert torch.equal(ditto.private(client)[DITTO], alone)
        assert not torch.equal(pulled.private(client)[DITTO], alone)


def second_phase(simulation: Simulation, client: int, updates: list[int]) -> Tensor:
    """:func:`central_sgd` with the batches of a local update's second phase."""
    import tests.methods.test_baselines as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module,
            "generator",
            lambda *labels: generator(*(2 if label == 1 and i == 4 else label for i, label in enumerate(labels))),
        )
        return central_sgd(simulation, client, [(t, 1) for t in updates]).clone()


def test_ditto_with_large_lam_keeps_the_received_model(simulate: Simulate) -> None:
    """The pull is towards what was received, not towards the client's own new global model."""
    options = {"train.rounds": 1, "train.momentum": 0.0, "train.batch_size": 10, "train.local_epochs": 3}
    weak, strong = (simulate("ditto", **options, **{"method.lam": lam}) for lam in (0.0, 10.0))
    client = weak.participants(1)[0]
    moved = [(s.private(client)[DITTO] - s.federation.initial).norm() for s in (weak, strong)]
    assert 0 < moved[1] < moved[0] / 3


# --- what is tested, sent and kept -----------------------------------------------------------------------------------


def test_client_without_training_is_tested_with_initial_model(simulate: Simulate) -> None:
    for name in ("apfl", "ditto"):
        simulation = simulate(name, **{"train.rounds": 1})
        fed = simulation.federation
        space, (stranger, *_) = fed.resident.space, set(range(10)) - set(simulation.participants(1))
        row = space.pack(fed.method.client_state(simulation.state.row, simulation.private(stranger)), torch.empty(space.size))
        expected = mixed(space, simulation.state.row, fed.initial, 0.75) if name == "apfl" else fed.initial
        assert torch.equal(row, expected)


def test_apfl_tested_with_the_clients_last_w(simulate: Simulate) -> None:
    simulation = simulate("apfl", **{"train.rounds": 1, "method.test_with": "local"})
    fed, client = simulation.federation, simulation.participants(1)[0]
    kept, space = simulation.private(client), fed.resident.space
    expected = central_sgd(simulation, client, [(1, 1)])
    assert torch.equal(kept[LAST], expected)
    row = space.pack(fed.method.client_state(simulation.state.row, kept), torch.empty(space.size))
    assert torch.equal(row, mixed(space, expected, kept[PERSONAL], 0.75))
    assert LAST not in simulate("apfl", **{"train.rounds": 1}).private(client)


@pytest.mark.parametrize(
    "outer",
    [
        {},
        {"train.momentum": 0.9, "train.weight_decay": 0.3, "train.clip_grad_norm": 0.01, "executor.name": "vectorized"},
        {"train.optimizer": "adam", "method.b": 0.001},
    ],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_perfedavg_is_tested_after_plain_steps_of_each_client(simulate: Simulate, outer: dict[str, Any], steps: int) -> None:
    """By hand: plain steps of rate a on all its samples, which change no state, whatever the outer steps are."""
    own = {"method.a": 0.5, "method.pers_steps": steps, "train.batch_size": 2000, "train.rounds": 1}
    simulation = simulate("perfedavg", **own, **outer)
    fed = simulation.federation
    accuracies = simulation.folder.records()[-1]["per_client"]["accuracy"]
    resident = fed.resident.frozen
    for client in range(10):
        resident.row.copy_(simulation.state.row)
        resident.set_trained(frozenset({"encoder", "projector", "head"}))
        x, y = fed.data.train(client)
        for _ in range(steps):
            loss = torch.nn.functional.cross_entropy(resident.net(x).logits, y)
            gradients = torch.autograd.grad(loss, list(resident.net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(resident.net.parameters(), gradients, strict=True):
                    parameter -= 0.5 * gradient
        resident.net.eval()
        with torch.no_grad():
            test = fed.data.split("test", client)
            hits = (resident.net(test.inputs).logits.argmax(1) == test.labels).double().mean()
        assert accuracies[client] == pytest.approx(float(hits), abs=0.02)
    still = simulate("perfedavg", **{"method.a": 0.0, "train.rounds": 1}).federation.method
    assert still.adaptation(1) == ()


@pytest.mark.parametrize("name", ["perfedavg", "apfl", "ditto"])
def test_a_client_with_one_sample_trains_on_it(simulate: Simulate, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per-FedAvg uses it for all three batches: a step by hand in float64, the Hessian's included."""
    options = {
        "train.participation": 1.0,
        "train.rounds": 1,
        "data.clients": 2,
        "data.partition.name": "iid",
        "model.projection": 16,
    }
    own = {"method.variant": "hessian_free", "method.a": 0.5, "method.b": 0.1} if name == "perfedavg" else {}
    simulation = simulate(name, play=False, **options, **own, **{"train.weight_decay": 0.0})
    x, y = simulation.federation.data.train(0)
    monkeypatch.setattr(simulation.federation.data, "train", lambda client: Split(x[:1], y[:1]))
    simulation.collector.samples = {0: 1, 1: 1}
    smooth(simulation)
    assert not torch.equal(simulation.state.row, simulation.federation.initial)
    if name != "perfedavg":
        assert torch.isfinite(simulation.state.row).all()
        return
    world = personal.World(simulation.federation.resident.frozen.net, 1.0, 0.0, 0.0)
    initial = {n: t.double() for n, t in simulation.federation.resident.space.unpack(simulation.federation.initial).items()}
    assert_is(
        simulation,
        simulation.state.row,
        personal.perfedavg(world, initial, x[:1].double(), y[:1], [torch.tensor([0])], 3, 0.5, 0.1, True),
    )


@pytest.mark.parametrize("name", ["perfedavg", "apfl", "ditto"])
def test_only_unmasked_model_tensors_are_sent(simulate: Simulate, name: str) -> None:
    mask = {"wire.transforms": [{"name": "mask", "roles": ["head"]}]}
    simulation, uploads = simulate(name, play=False, **mask), list[Sealed]()
    simulation.taps.append(lambda way, sealed: uploads.append(sealed) if way == "up" else None)
    simulation.run_round()
    space, initial = simulation.federation.resident.space, simulation.federation.initial
    assert all(set(upload.schema) == set(space.select(["encoder", "projector"])) for upload in uploads)
    for entry in space.entries:
        same = torch.equal(space.view(simulation.state.row, entry.name), space.view(initial, entry.name))
        assert same == (entry.role == "head"), entry.name


BATCHNORM = {
    "model.name": "resnet9_narrow",
    "data.clients": 20,
    "train.participation": 0.05,
    "train.batch_size": 20,
    "train.rounds": 2,
    "eval.every": 2,
    "eval.last": 1,  # round 1 is not scored, which takes longest
}


def test_batchnorm_of_the_personal_model_stays_with_the_client(simulate: Simulate) -> None:
    simulation = simulate("apfl", play=False, **BATCHNORM)
    simulation.run_round()
    space, client = simulation.federation.resident.space, simulation.participants(1)[0]
    entry = next(e for e in space.entries if e.name.endswith("running_mean"))
    kept = simulation.private(client)[PERSONAL]
    assert not torch.equal(space.view(kept, entry.name), space.view(simulation.state.row, entry.name))
    row = simulation.federation.method.client_state(simulation.state.row, simulation.private(client))
    assert torch.equal(row[entry.name], space.view(kept, entry.name))


def test_perfedavg_inner_passes_do_not_change_batchnorm(simulate: Simulate) -> None:
    rows = []
    for a in (0.0, 1e-12):  # a step so small that the outer pass sees the same model
        simulation = simulate(
            "perfedavg",
            play=False,
            **{**BATCHNORM, "train.batch_size": 8, "train.local_steps": 1},
            **{"method.a": a, "method.variant": "hessian_free"},
        )
        simulation.run_round()
        space = simulation.federation.resident.space
        rows.append(torch.cat([space.view(simulation.state.row, e.name).flatten() for e in space.entries if e.kind == "buffer"]))
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-5, atol=1e-6)


# --- what goes together ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error"), [("perfedavg", "several models"), ("apfl", "two models"), ("ditto", "personal model")]
)
def test_sample_level_dp_is_refused_and_says_why(simulate: Simulate, name: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        simulate(name, play=False, **{"privacy.level": "sample", "privacy.noise": 1.0})
    simulate(name, **{"privacy.level": "client", "privacy.noise": 1.0, "train.rounds": 1})


def test_the_steps_run_with_other_methods_too(simulate: Simulate) -> None:
    a, b = (simulate("fedavg", **{"objective.name": "perfedavg", "objective.a": a, "train.rounds": 1}) for a in (0.0, 0.1))
    assert not torch.equal(a.state.row, b.state.row)
    layered = simulate("fedrep", **{"objective.name": "apfl", "method.head_epochs": 1, "train.rounds": 1})
    assert torch.isfinite(layered.state.row).all()
    for name in ("perfedavg", "apfl"):
        with pytest.raises(UsageError, match="needs its own"):
            simulate(name, play=False, **{"objective.name": "cross-entropy"})


def test_label_free_objective_is_refused_by_methods_with_labels(simulate: Simulate) -> None:
    for name, error in (
        ("ditto", "personal model is trained"),
        ("fedavg-ft", "fine-tunes on them"),
        ("fedprox-ft", "fine-tunes"),
    ):
        message = f"method {name} needs an objective that uses labels, as .*{error}.*; objective simclr uses none"
        with pytest.raises(UsageError, match=message):
            simulate(name, play=False, **{"objective.name": "simclr", "train.batch_size": 8})


@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
def test_perfedavg_splits_no_batch_into_parts_below_min_batch(
    simulate: Simulate, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be too small for BatchNorm; the whole batch is used for each, as of a client with one sample."""
    some = {"train.participation": 1.0, "train.rounds": 1, "data.clients": 2, "data.partition.name": "iid"}
    net = {"model.projector": "simclr", "model.projection": 16, "train.min_batch": 2}
    simulation = simulate("perfedavg", play=False, **some, **net, **{"method.variant": variant})
    x, y = simulation.federation.data.train(0)
    monkeypatch.setattr(simulation.federation.data, "train", lambda client: Split(x[:3], y[:3]))
    simulation.collector.samples = {0: 3, 1: 3}
    smooth(simulation)
    assert torch.isfinite(simulation.state.row).all()
    assert not torch.equal(simulation.state.row, simulation.federation.initial)


def test_defaults_are_the_cards(simulate: Simulate) -> None:
    params = {name: simulate(name, play=False).config.method.params for name in ("perfedavg", "apfl", "ditto")}
    assert params["perfedavg"] == {
        "weights": "uniform",
        "variant": "first_order",
        "a": 0.01,
        "e": 1e-3,
        "b": 0.001,
        "pers_steps": 1,
    }
    assert params["apfl"] == {"weights": "uniform", "alpha": None, "adaptive": False, "alpha_lr": None, "test_with": "global"}
    assert params["ditto"] == {"weights": "samples", "lam": 1.0, "personal_epochs": None}
    for adaptive, alpha in ((False, 0.75), (True, 0.5)):
        kept = simulate("apfl", play=False, **{"method.adaptive": adaptive}).private(0)
        assert float(kept[ALPHA]) == alpha
