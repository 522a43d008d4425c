"""What holds of methods together with options, without a number to compare with: what must change nothing changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.config import load_config
from fedpriv.interfaces import LocalUpdate
from fedpriv.methods import methods
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder
from tests.marks import FEW, federated, quick_first, slow_but
from tests.simulation.small import QUICK, SMALL
from tests.simulation.trial import everything, in_float64

METHODS = slow_but(FEW, federated())
RAGGED = {
    **SMALL,
    "data.limit": 120,
    "data.clients": 5,
    "data.partition.name": "dirichlet",
    "data.partition.min_samples": 4,
    "model.projection": 8,
    "train.batch_size": 8,
    "train.momentum": 0.5,
    "train.participation": 0.8,
    "eval.last": 1,
}
"""Clients that differ in their numbers of samples and steps, and of whom not all take part."""


def prepared(folder: Path, method: str, **overrides: Any) -> Simulation:
    federation = build(load_config(None, {**RAGGED, **QUICK.get(method, {}), "method.name": method, **overrides}))
    return Simulation(federation, RunFolder.create(federation.config, folder), lambda text: None)


def played(simulation: Simulation) -> Simulation:
    simulation.start()
    for _ in simulation.rounds():
        pass
    return simulation


def three_rounds(simulation: Simulation, numbers: list[int]) -> dict[str, Tensor]:
    """The server's state, in float64, where client i has the samples, and the random draws, of client ``numbers[i]``."""
    data, method = simulation.federation.data, simulation.federation.method
    in_float64(simulation.federation)
    train = data.train
    data.train = lambda client: train(client)._replace(inputs=train(client).inputs.double())  # type: ignore[method-assign, union-attr]
    data._indices = {which: [held[number] for number in numbers] for which, held in data._indices.items()}
    original = method.local_update

    def with_draws_of_another(update: LocalUpdate) -> None:
        own = update.client
        update.client = numbers[own]
        original(update)
        update.client = own

    method.local_update = with_draws_of_another  # type: ignore[method-assign]
    again = Simulation(simulation.federation, simulation.folder, lambda text: None)
    again.start()
    for _ in range(3):
        assert "refused" not in again.run_round()
    return {"row": again.state.row, **again.state.memory}


@pytest.mark.parametrize("method", METHODS)
def test_clients_may_have_other_numbers(tmp_path: Path, method: str) -> None:
    options = {"train.selection": "all", "train.participation": None, "train.rounds": 9, "eval.every": 9}
    plain, renamed = (
        three_rounds(prepared(tmp_path / name, method, **options), numbers)
        for name, numbers in (("plain", [0, 1, 2, 3, 4]), ("renamed", [3, 0, 4, 1, 2]))
    )
    for name, value in plain.items():
        torch.testing.assert_close(renamed[name], value, rtol=0, atol=1e-10, msg=lambda message, name=name: f"{name}: {message}")


@pytest.mark.parametrize("method", METHODS)
def test_how_often_a_run_is_tested_changes_nothing(tmp_path: Path, method: str) -> None:
    tested = {"eval.every": 1, **({"eval.fresh_head": 1} if methods()[method].objective_class.labels else {})}
    tested |= {"method.ft_epochs": 1, "method.ft_when": "last", "eval.last": 3} if method.endswith("-ft") else {}
    often = dict(everything(played(prepared(tmp_path / "often", method, **tested))))
    once = dict(everything(played(prepared(tmp_path / "once", method, **{"eval.every": 9}))))
    assert often.keys() == once.keys()
    assert not [name for name, tensor in once.items() if not torch.equal(often[name], tensor)]


OFF: dict[str, dict[str, Any]] = {
    "fedprox": {"method.mu": 0},
    "moon": {"method.mu": 0},
    "scaffold": {"method.layers": 0, "method.weights": "samples"},
    "ditto": {},
    "apfl": {"method.weights": "samples"},
    "fedbn": {},  # on a net without BatchNorm
}
"""Methods whose server has FedAvg's model where their idea is switched off, or where it only concerns what stays with clients."""
TOGETHER: list[dict[str, Any]] = [
    {"train.optimizer": "adamw", "train.lr": 0.003, "train.warmup_steps": 2, "train.lr_decay": 0.5, "data.augment": "crop_flip"},
    {"train.clip_grad_norm": 0.2, "wire.transforms": [{"name": "mask", "last": 1}, {"name": "quantise", "bits": 6}]},
    {"train.local_steps": 3, "train.min_batch": 4, "train.selection": "window", "train.participation": 0.4},
    {"privacy.level": "client", "privacy.noise": 0.5, "privacy.clip": 0.5, "privacy.delta": 1e-2},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Tensor]:
    """FedAvg's last model under each of the options, by their place."""
    rows: dict[int, Tensor] = {}

    def of(place: int) -> Tensor:
        if place not in rows:
            rows[place] = played(prepared(tmp_path_factory.mktemp("plain"), "fedavg", **TOGETHER[place])).state.row
        return rows[place]

    return of


@pytest.mark.parametrize("place", range(len(TOGETHER)))
@pytest.mark.parametrize("method", quick_first(OFF))
def test_switched_off_it_is_fedavg_with_any_options(tmp_path: Path, plain: Any, method: str, place: int) -> None:
    options = TOGETHER[place]
    if method == "scaffold" and "privacy.level" in options:
        pytest.skip("client-level DP refuses its server")
    assert torch.equal(played(prepared(tmp_path / "run", method, **OFF[method], **options)).state.row, plain(place))
