"""What tests of executors and devices need: small runs in float64, and nets of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedpriv.client.resident import Resident
from fedpriv.config import load_config
from fedpriv.models import registry
from fedpriv.models.registry import Shape, register_model
from fedpriv.simulation.setup import Federation, build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder
from tests.simulation.small import QUICK

SMALL = {
    "data.name": "digits",
    "data.limit": 200,
    "data.clients": 8,
    "data.partition.name": "dirichlet",  # ragged: clients differ in steps and in their last batches
    "data.partition.alpha": 0.3,
    "model.name": "pooled",
    "model.projection": 8,
    "train.participation": 0.6,  # 5 of 8: in two rounds, some train twice
    "train.rounds": 9,
    "train.local_epochs": 2,
    "train.batch_size": 16,
    "train.lr": 0.02,
    "eval.every": 9,
    "eval.last": 1,
    "tracking.uri": "none",
}


@contextmanager
def user_nets() -> Iterator[None]:
    """What is registered within is forgotten after it."""
    registry.list_models()  # or the built-in ones would be loaded on top
    known = dict(registry.REGISTRY._known)
    yield
    registry.REGISTRY._known.clear()
    registry.REGISTRY._known.update(known)


def register_pooled() -> None:
    """The net ``pooled`` of :data:`SMALL`; within :func:`user_nets`."""

    @register_model("pooled", input_shape=(1, 8, 8), classes=10, source="test")
    def pooled(shape: Shape) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 16), nn.ReLU()), 16


def in_float64(federation: Federation) -> None:
    """Its net and its initial model; the samples are the caller's to convert."""
    federation.resident = Resident(federation.resident.net.double(), federation.resident.space, federation.resident.device)
    federation.agreement.initial = federation.resident.row.clone()


def play(folder: Path, executor: str, double: bool, rounds: int, **overrides: Any) -> Simulation:
    """So many rounds of :data:`SMALL` with an executor, in float64 if ``double``."""
    together = {"executor.group_size": 3} if executor == "vectorized" else {}
    quick = QUICK.get(overrides["method.name"], {})
    federation = build(load_config(None, {**SMALL, "executor.name": executor, **together, **quick, **overrides}))
    if double:
        in_float64(federation)
        train = federation.places.train
        federation.places.train = lambda client: train(client)._replace(inputs=train(client).inputs.double())  # type: ignore[method-assign, union-attr]
    simulation = Simulation(federation, RunFolder.create(federation.config, folder), lambda text: None)
    simulation.start()
    for _ in range(rounds):
        simulation.run_round()
    return simulation


def everything(simulation: Simulation) -> Iterator[tuple[str, Tensor]]:
    """The server's model and memory, and what each client keeps, by name."""
    yield from simulation.federation.resident.space.unpack(simulation.state.row).items()
    yield from simulation.state.memory.items()
    for client in sorted(simulation.progress.clients):
        yield from ((f"{client} {name}", tensor) for name, tensor in sorted((simulation.stored(client) or {}).items()))
