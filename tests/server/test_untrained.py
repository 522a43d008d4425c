"""Clients that take no step, as all their batches are too small, send nothing and have no weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.errors import UsageError
from fedpriv.server.answers.arrivals import Arrivals
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.payloads import PayloadStore
from fedpriv.wire import Payload, seal
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report
from tests.marks import federated, slow_but

Simulate = Callable[..., Simulation]
UNEVEN: dict[str, Any] = {
    "data.clients": 8,
    "data.limit": 500,
    "data.partition.name": "dirichlet",
    "data.partition.alpha": 0.3,
    "data.partition.seed": 3,
    "train.participation": 1.0,
    "train.rounds": 1,
    "train.batch_size": 100,
}
LEAST = {"train.min_batch": 60}


def who_trains(simulation: Simulation) -> list[int]:
    """The clients with at least 60 samples."""
    sizes = simulation.federation.data.sizes
    trains = [client for client, size in sizes.items() if size >= 60]
    assert 3 <= len(trains) < len(sizes) == 8, sizes
    return trains


def drawn(clients: list[int], folder: Path) -> dict[str, Any]:
    """A schedule of one round of these clients."""
    file = folder / "schedule.txt"
    file.write_text(" ".join(map(str, clients)) + "\n")
    return {"train.selection": "schedule", "train.schedule": str(file)}


def shared(simulation: Simulation) -> torch.Tensor:
    space = simulation.federation.resident.space
    return torch.cat([space.view(simulation.state.row, name).flatten() for name in simulation.agreement.method.shared_names])


@pytest.mark.parametrize("method", slow_but(["fedavg", "mpfedcon"], sorted(set(federated()) - {"local"})))
def test_a_round_merges_those_that_trained_as_if_the_others_had_not_taken_part(
    method: str, simulate: Simulate, tmp_path: Path
) -> None:
    """Of every method: the others are replaced by a schedule of the clients that train."""
    options = UNEVEN | {"train.min_batch": 60}
    everyone = simulate(method, **options)
    alone = simulate(method, **{**options, **drawn(who_trains(everyone), tmp_path)})
    assert torch.equal(shared(everyone), shared(alone))
    assert everyone.state.memory.keys() == alone.state.memory.keys()
    for name, tensor in everyone.state.memory.items():
        assert torch.equal(tensor, alone.state.memory[name]), name


def test_the_server_moves_by_the_whole_change_of_the_only_client_that_trains(simulate: Simulate) -> None:
    for weights in ("samples", "uniform"):
        run = simulate("fedavg", **UNEVEN, **{"train.min_batch": 100, "method.weights": weights, "wire.keep_payloads": "all"})
        assert [size >= 100 for size in run.federation.data.sizes.values()].count(True) == 1
        (big,) = [client for client, size in run.federation.data.sizes.items() if size >= 100]
        upload = PayloadStore.of(run.folder).upload(1, big).tensors()
        row = run.federation.resident.space.pack(upload, run.state.row.clone())
        torch.testing.assert_close(run.state.row, row, rtol=0, atol=1e-7)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_record_says_how_many_and_which(executor: str, simulate: Simulate) -> None:
    simulation = simulate("fedavg", **UNEVEN, **LEAST, **{"executor.name": executor})
    record, idle = simulation.progress.record, sorted(set(range(8)) - set(who_trains(simulation)))
    assert record["untrained"] == record["without_effect"] == idle
    assert (record["metrics"]["untrained"], record["metrics"]["participants"], record["metrics"]["dropped"]) == (len(idle), 8, 0)
    assert f"{len(idle)} of 8 clients take no step, as each needs a batch of 60 samples" in " ".join(
        simulation.federation.prepared.notes
    )


def test_a_secure_sum_is_that_of_the_clients_that_trained(simulate: Simulate) -> None:
    plain, summed = (simulate("fedavg", **UNEVEN, **LEAST, **{"wire.secure_aggregation": on}) for on in (False, True))
    assert summed.progress.record["summed"] == who_trains(summed)
    torch.testing.assert_close(summed.state.row, plain.state.row, rtol=0, atol=1e-5)


def test_a_run_in_which_no_client_would_take_a_step_is_refused(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match=r"no client would take a step: each step needs a batch of 5000 samples"):
        simulate("fedavg", play=False, **{"train.batch_size": 5000, "train.min_batch": 5000})


def test_an_upload_beside_such_a_report_is_refused(simulate: Simulate) -> None:
    agreement = simulate("fedavg", play=False).agreement
    report = Report(1, 0, 40, untrained=True)
    assert Report.of(report.seal()).untrained and not Report.of(replace(report, untrained=False).seal()).untrained
    arrivals = Arrivals(agreement, 1, [0], {})
    upload = seal(Payload(agreement.space.unpack(agreement.initial), 1, 0, num_examples=40))
    with pytest.raises(Refused, match="it uploads, but it took no step"):
        arrivals.take(Answer(0, upload, report.seal()))
