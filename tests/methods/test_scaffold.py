"""SCAFFOLD and FedPVR: control variates, their invariants, and runs against a slow version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.aggregation.mean_shift import dynamic_names
from fedpriv.aggregation.scaffold import chosen_layers
from fedpriv.errors import UsageError
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed, statistic, tensor_of
from tests.marks import quick_first, slow_but
from tests.methods.against_oracle import RAGGED, replay, same
from tests.oracles import global_baselines as oracles

Simulate = Callable[..., Simulation]
PLAIN = {"train.momentum": 0.0}
UNIFORM = {"method.weights": "uniform"}
LAST = {"projector.fc2.weight", "projector.fc2.bias", "head.weight", "head.bias"}


def variates(simulation: Simulation) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """c and the clients' c_k, by tensor; zeros for a client that never took part."""
    server = {tensor_of(name): c for name, c in simulation.state.memory.items()}
    clients = [simulation.stored(client) or {} for client in range(simulation.config.data.clients)]
    own = [{n: kept.get(f"scaffold.variate/{n}", torch.zeros_like(c)) for n, c in server.items()} for kept in clients]
    return server, own


def names(simulation: Simulation) -> set[str]:
    return {entry.name for entry in simulation.federation.resident.space.entries if entry.kind != "buffer"}


@pytest.mark.parametrize(
    ("option", "momentum", "server_lr"),
    slow_but(["II"], [("II", 0.0, 1.0), ("mean", 0.0, 1.0), ("I", 0.0, 0.5), ("mean", 0.9, 1.0), ("I", 0.5, 1.0)]),
)
def test_three_rounds_equal_the_oracle(simulate: Simulate, option: str, momentum: float, server_lr: float) -> None:
    options = {"method.variate": option, "train.momentum": momentum, "method.server_lr": server_lr, "train.rounds": 4}
    simulation = simulate("scaffold", **RAGGED, **options)
    assert len({c for t in range(1, 5) for c in simulation.participants(t)}) < 16, "a client takes part twice"
    slow = replay(
        simulation, oracles.scaffold, option=option, server_lr=server_lr, masked=names(simulation), plain=False, registered=10
    )
    same(simulation, slow.model)
    server, own = variates(simulation)
    for name, c in slow.server["c"].items():
        torch.testing.assert_close(server[name].double(), c, rtol=1e-3, atol=2e-5)
        for client, kept in slow.clients.items():
            torch.testing.assert_close(own[client][name].double(), kept["c"][name], rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("momentum", quick_first([0.0, 0.9]))
def test_fedpvr_equals_the_oracle(simulate: Simulate, momentum: float) -> None:
    """The last layers by plain SGD and corrected, the others with momentum."""
    simulation = simulate("fedpvr", **RAGGED, **{"train.momentum": momentum, "method.variate": "II"})
    slow = replay(simulation, oracles.scaffold, option="II", server_lr=1.0, masked=LAST, plain=True, registered=10)
    same(simulation, slow.model)
    assert set(variates(simulation)[0]) == LAST


@pytest.mark.parametrize("option", ["I", "II", "mean"])
def test_server_variate_is_the_mean_over_all_clients(simulate: Simulate, option: str) -> None:
    simulation = simulate("scaffold", play=False, **PLAIN, **{"method.variate": option})
    for _ in simulation.rounds():
        server, own = variates(simulation)
        for name, c in server.items():
            torch.testing.assert_close(torch.stack([variates[name] for variates in own]).mean(0), c, rtol=1e-5, atol=1e-7)
    assert any(bool(c.any()) for c in server.values())


def test_the_mean_of_raw_gradients_is_option_two_for_plain_sgd(simulate: Simulate) -> None:
    two, mean = (simulate("scaffold", **RAGGED, **PLAIN, **{"method.variate": option}) for option in ("II", "mean"))
    torch.testing.assert_close(two.state.row, mean.state.row, rtol=1e-4, atol=1e-6)
    for a, b in zip(variates(two)[1], variates(mean)[1], strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=2e-5)


def test_without_variates_it_is_fedavg_bit_for_bit(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    fedavg, scaffold = simulate("fedavg", **UNIFORM, **PLAIN), simulate("scaffold", **PLAIN)
    assert not torch.equal(fedavg.state.row, scaffold.state.row)
    from fedpriv.objectives.scaffold import Scaffold

    kept = Scaffold._new_variates
    monkeypatch.setattr(
        Scaffold, "_new_variates", lambda self, update: {n: torch.zeros_like(t) for n, t in kept(self, update).items()}
    )
    forced = simulate("scaffold", **PLAIN)
    assert torch.equal(fedavg.state.row, forced.state.row)


def test_the_first_round_is_fedavg(simulate: Simulate) -> None:
    fedavg, scaffold = (simulate(m, **UNIFORM, **{"train.rounds": 1}) for m in ("fedavg", "scaffold"))
    assert torch.equal(fedavg.state.row, scaffold.state.row)


def test_option_one_is_the_full_gradient_at_the_received_model(simulate: Simulate) -> None:
    simulation = simulate("scaffold", **{"method.variate": "I", "train.rounds": 1, "train.weight_decay": 0.0})
    fed, client = simulation.federation, simulation.participants(1)[0]
    net = fed.resident.frozen.net
    fed.resident.frozen.row.copy_(fed.initial)
    net.requires_grad_(True)
    x, y = fed.data.train(client)
    loss = torch.nn.functional.cross_entropy(net(x).logits, y)
    expected = torch.autograd.grad(loss, list(net.parameters()))
    kept = variates(simulation)[1][client]
    for (name, _), gradient in zip(net.named_parameters(), expected, strict=True):
        torch.testing.assert_close(kept[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_correction_is_the_same_in_every_step(simulate: Simulate) -> None:
    """A single client: c = c_k from its first turn on, so that it is central SGD."""
    single_client = {"data.clients": 1, "train.participation": 1.0, "data.partition.name": "iid", **PLAIN}
    fedavg, scaffold = simulate("fedavg", **single_client), simulate("scaffold", **single_client)
    torch.testing.assert_close(fedavg.state.row, scaffold.state.row, rtol=1e-5, atol=1e-6)


def test_fedpvr_without_layers_is_fedavg_and_with_all_scaffold(simulate: Simulate) -> None:
    shared = {"train.momentum": 0.9}
    fedavg = simulate("fedavg", **shared, **UNIFORM)
    none = simulate("fedpvr", **shared, **{"method.layers": 0})
    assert torch.equal(fedavg.state.row, none.state.row) and none.state.memory == {} and none.progress.clients == {}
    scaffold = simulate("scaffold", **PLAIN)
    every = simulate("fedpvr", **shared, **{"method.layers": ["*"]})
    assert torch.equal(scaffold.state.row, every.state.row)
    assert not torch.equal(simulate("fedpvr", **shared).state.row, every.state.row)


def test_only_the_chosen_layers_have_variates_on_the_wire(simulate: Simulate) -> None:
    simulation, crossed = simulate("fedpvr", play=False), list[Sealed]()
    simulation.taps.append(lambda way, sealed: crossed.append(sealed) if way != "report" else None)
    for _ in simulation.rounds():
        pass
    for sealed in crossed:
        assert {name for name in sealed.schema if name.startswith("statistic.")} == {statistic("variate", n) for n in LAST}


def test_batchnorm_is_no_layer(simulate: Simulate) -> None:
    """Of resnet9, the last two layers are the last convolution and the head; a BatchNorm layer lies between them."""
    net = {"model.name": "resnet9_narrow", "model.projection": None, "data.limit": 60}
    simulation = simulate("fedpvr", play=False, **net)
    context = simulation.federation.method.context
    chosen = [tensor_of(name) for name in simulation.state.memory]
    assert chosen == list(dynamic_names(context.layers, "last2_layers", context.norms))
    assert any(name in context.norms for name in context.layers[context.layers.index(chosen[0]) :]), "one is passed over"


def test_which_layers() -> None:
    forward = ["encoder.fc1.weight", "encoder.fc1.bias", "head.weight", "head.bias"]
    assert chosen_layers(forward, None) == forward and chosen_layers(forward, 0) == []
    assert chosen_layers(forward, 1) == forward[2:] and chosen_layers(forward, 2) == forward
    assert chosen_layers(forward, ("head.*", "*fc1.bias")) == forward[1:]
    norms = frozenset({"encoder.bn1.weight", "encoder.bn1.bias"})
    with_norms = [*forward[:2], *sorted(norms), *forward[2:]]
    assert chosen_layers(with_norms, 2, norms) == list(dynamic_names(with_norms, "last2_layers", norms)) == forward
    with pytest.raises(UsageError, match=r"layers = 3: the net has 2 \(encoder.fc1, head\)"):
        chosen_layers(forward, 3)
    with pytest.raises(UsageError, match=r"'encoder.fc9\.\*' matches no parameter"):
        chosen_layers(forward, ("encoder.fc9.*",))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"train.momentum": 0.9}, r"steps with momentum 0\.9.*variate=mean.*train\.momentum=0"),
        ({"train.optimizer": "adam"}, r"Adam's steps.*variate=mean.*train\.optimizer=sgd"),
    ],
)
def test_option_two_needs_plain_sgd(simulate: Simulate, options: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        simulate("scaffold", play=False, **options, **{"method.variate": "II"})


@pytest.mark.parametrize("method", ["scaffold", "fedpvr"])
def test_adam_gets_corrected_gradients(simulate: Simulate, method: str) -> None:
    shared = {"train.optimizer": "adam", "train.lr": 1e-3}
    corrected, plain = simulate(method, **shared), simulate("fedavg", **shared, **UNIFORM)
    assert torch.isfinite(corrected.state.row).all() and not torch.equal(corrected.state.row, plain.state.row)


def test_encoder_variates_come_from_the_encoder_phase(simulate: Simulate) -> None:
    """FedRep's head phase leaves the encoder where it is; what is stale in its gradient must not count."""
    parts = {"objective": {"name": "scaffold", "variate": "mean"}, "aggregation": "scaffold"}
    options = {"method.head_epochs": 2, "train.rounds": 2, "train.weight_decay": 0.0, **PLAIN}
    mean = simulate("fedrep", **options, **parts)
    parts["objective"] = {"name": "scaffold", "variate": "II"}
    two = simulate("fedrep", **options, **parts)
    for a, b in zip(variates(mean)[1], variates(two)[1], strict=True):
        assert all(name.startswith("encoder") for name in a)
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=2e-5)
    assert any(bool(t.any()) for t in variates(mean)[1][mean.participants(2)[0]].values())


def test_masked_tensors_and_variates(simulate: Simulate) -> None:
    hidden = simulate("scaffold", **{"wire.transforms": [{"name": "mask", "roles": ["head"]}]})
    assert variates(hidden)[0] and not any(name.startswith("head") for name in variates(hidden)[0])
    with pytest.raises(UsageError, match=r"scaffold needs statistic\.variate/.* of every client; a mask removes it"):
        simulate("scaffold", **{"wire.transforms": [{"name": "mask", "names": ["statistic.*"]}]})


def test_a_client_that_takes_no_step_keeps_its_variate(simulate: Simulate) -> None:
    uneven = {"data.clients": 3, "data.partition.name": "dirichlet", "data.partition.alpha": 0.3, "data.partition.seed": 3}
    simulation = simulate("scaffold", **uneven, **{"train.participation": 1.0, "train.batch_size": 600, "train.min_batch": 200})
    common, own = variates(simulation)
    assert [any(bool(c.any()) for c in variates.values()) for variates in own] == [
        simulation.federation.data.size(k) >= 200 for k in range(3)
    ]
    assert all(bool(c.any()) for c in common.values()) and simulation.progress.record["metrics"]["untrained"] == 2


def test_one_half_needs_the_other(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match="objective scaffold needs variate, which aggregation mean does not send"):
        simulate("fedavg", play=False, objective="scaffold")
    with pytest.raises(UsageError, match="aggregation scaffold needs variate, which objective cross-entropy does not send"):
        simulate("fedavg", play=False, aggregation="scaffold")


def test_sample_level_dp_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match="control variates"):
        simulate("scaffold", play=False, **{"privacy.level": "sample", "privacy.noise": 1.0})
