"""Bad clients: what they send, beside an honest client in their place, and which merges hold against them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.audit.record.run import RunRecord
from fedpriv.client.corrupt import corrupt_clients
from fedpriv.config import load_config
from fedpriv.data.federated import ClientData
from fedpriv.errors import UsageError
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.payloads import PayloadStore
from tests.conftest import SMALL, simulated

Simulate = Callable[..., Simulation]
ALL = {"train.participation": 1.0, "train.rounds": 1}
HALF = {**ALL, "data.corrupt_clients": 0.5}


def sent(simulation: Simulation) -> dict[int, Tensor]:
    """Each client's update of round 1, of the parameters."""
    store = PayloadStore.of(simulation.folder)
    start = store.download(1).tensors()
    uploads = {client: store.upload(1, client).tensors() for client in store.clients(1)}
    return {c: torch.cat([(u[name] - start[name]).flatten() for name in start if name in u]) for c, u in uploads.items()}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_bad_clients_alone_send_other_updates(simulate: Simulate, executor: str) -> None:
    def updates(**overrides: Any) -> dict[int, Tensor]:
        return sent(simulate("fedavg", **{**ALL, "executor.name": executor, "wire.keep_payloads": "all", **overrides}))

    honest = updates()
    bad = corrupt_clients(load_config(None, {**SMALL, **HALF}))
    assert len(bad) == 5
    sizes = {"sign": -1.0, "scale": 10.0}
    for kind, factor in sizes.items():
        for client, update in updates(**HALF, **{"data.corruption": kind}).items():
            expected = honest[client] * (factor if client in bad else 1)
            torch.testing.assert_close(update, expected, atol=1e-5, rtol=1e-4)
    for client, update in updates(**HALF, **{"data.corruption": "noise"}).items():
        far = float((update - honest[client]).norm() / honest[client].norm())
        assert 5 < far < 15 if client in bad else far == 0
    changed = {client for client, update in updates(**HALF).items() if not torch.equal(update, honest[client])}
    assert changed == bad


def test_training_labels_alone_are_flipped() -> None:
    federation = build(load_config(None, {**SMALL, **HALF}))
    for client in range(10):
        labels = federation.data.train(client).labels
        trained = federation.client(client, None).data.train().labels
        torch.testing.assert_close(trained, 9 - labels if client in federation.corrupt else labels)
        of_client, honest = federation.client(client, None).data, ClientData(federation.data, client)
        tested, real = (torch.cat([part.labels for part in data.chunks("test", 99)]) for data in (of_client, honest))
        torch.testing.assert_close(tested, real)


def test_runs_with_bad_clients_are_not_audited(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, "fedavg", **HALF)
    with pytest.raises(UsageError, match="has bad clients"):
        RunRecord(simulation.folder.path)


def test_a_method_that_merges_nothing_refuses_them() -> None:
    with pytest.raises(UsageError, match="merges nothing"):
        build(load_config(None, {**SMALL, **HALF, "method.name": "local"}))


def test_numbers_cannot_be_flipped(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,stay\n" + "\n".join(f"{i},{i * 0.5 + 0.1}" for i in range(60)))
    table = {**HALF, "data.name": str(tmp_path / "t.csv"), "data.task": "regression", "data.label": "stay"}
    with pytest.raises(UsageError, match="flips classes"):
        build(
            load_config(
                None,
                {**SMALL, **table, "data.limit": None, "data.partition.name": "iid", "model.name": None, "method.name": "fedavg"},
            )
        )
