"""FedBN: FedAvg without BatchNorm; with it, a client's layers are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed

Simulate = Callable[..., Simulation]
BATCHNORM = {"model.name": "resnet9_narrow", "data.clients": 3, "data.limit": 60, "data.partition.name": "iid"}
BATCHNORM |= {"train.participation": 0.67, "train.batch_size": 20, "train.rounds": 2, "eval.every": 9, "eval.last": 1}


@pytest.mark.parametrize("net", ["mlp2", "lenet_sigmoid"])
def test_without_batchnorm_it_is_fedavg_bit_for_bit(simulate: Simulate, net: str) -> None:
    shared = {"model.name": net, "train.rounds": 2}
    fedavg, fedbn = simulate("fedavg", **shared), simulate("fedbn", **shared)
    assert torch.equal(fedavg.state.row, fedbn.state.row)
    assert fedbn.progress.clients == {} and fedbn.federation.method.has_global_model
    assert fedavg.progress.total_bytes_up == fedbn.progress.total_bytes_up
    assert fedavg.progress.total_bytes_down == fedbn.progress.total_bytes_down


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, list[Sealed]]:
    from tests.conftest import SMALL, RunFolder, build, load_config

    settings: dict[str, Any] = {**SMALL, **BATCHNORM, "method.name": "fedbn"}
    federation = build(load_config(None, settings))
    simulation = Simulation(federation, RunFolder.create(federation.config, tmp_path_factory.mktemp("fedbn")), lambda text: None)
    crossed: list[Sealed] = []
    simulation.taps.append(lambda way, sealed: crossed.append(sealed) if way != "report" else None)
    simulation.start()
    for _ in simulation.rounds():
        pass
    return simulation, crossed


def test_batchnorm_never_crosses_the_wire(played: tuple[Simulation, list[Sealed]]) -> None:
    simulation, crossed = played
    norms = simulation.federation.method.context.norms
    assert any("bn" not in name for name in norms), "found by their type: their names do not say it"
    assert crossed and all(not norms & set(sealed.schema) for sealed in crossed)
    others = set(simulation.federation.resident.space.names) - norms
    assert all(others == set(sealed.schema) for sealed in crossed)


def test_running_statistics_may_be_averaged(simulate: Simulate) -> None:
    simulation = simulate("fedbn", play=False, **BATCHNORM, **{"method.statistics": "averaged"})
    method, space = simulation.federation.method, simulation.federation.resident.space
    norms = set(space.names) & method.context.norms
    shared = {name for name in norms if space[name].kind == "buffer"}
    assert norms & set(method.shared_names) == shared and set(method.private_names) == norms - shared and norms - shared


def test_each_client_keeps_its_own_and_is_tested_with_it(played: tuple[Simulation, list[Sealed]]) -> None:
    simulation, _ = played
    method, space = simulation.federation.method, simulation.federation.resident.space
    own = set(space.names) & method.context.norms
    assert not method.has_global_model
    kept = {client: simulation.stored(client) or {} for client in simulation.progress.clients}
    assert all(set(state) == own for state in kept.values())
    mean = next(name for name in own if name.endswith("running_mean"))
    first, second = [state[mean] for state in kept.values()][:2]
    assert not torch.equal(first, second)
    assert torch.equal(space.view(simulation.state.row, mean), space.view(simulation.federation.initial, mean))
    for client, state in kept.items():
        tested = method.client_state(simulation.state.row, state)
        assert torch.equal(tested[mean], state[mean]), client
        assert torch.equal(tested["head.weight"], space.view(simulation.state.row, "head.weight"))
