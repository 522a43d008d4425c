"""``eval.before_merge``: the models that clients send are tested before they are merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.methods.base import Method, ServerState
from fedpriv.server import next_state
from fedpriv.server.merging import merge
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire.coding import Upload

Simulate = Callable[..., Simulation]
BEFORE = {"eval.before_merge": True}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[Upload]]:
    """The uploads of each round, as they are merged."""
    seen: list[list[Upload]] = []

    def noted(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        seen.append(list(uploads))
        return merge(method, server, uploads)

    monkeypatch.setattr(next_state, "merge", noted)
    return seen


def _correct(simulation: Simulation, tensors: dict[str, Tensor], pool: Any) -> Tensor:
    """Which samples of a pool the net gets right with these tensors, by the plain net."""
    net, data = simulation.federation.resident.net, simulation.federation.data
    net.eval()
    state = {**net.state_dict(), **tensors}
    with torch.no_grad():
        logits = [torch.func.functional_call(net, state, (chunk,)).logits for chunk in data.chunks(pool, 100)]
    return torch.cat(logits).argmax(1) == data.labels(pool)


@pytest.mark.parametrize("test", ["disjoint", "all_of_class"])
def test_each_model_is_tested_as_it_was_sent(simulate: Simulate, sent: list[list[Upload]], test: str) -> None:
    shared = {"data.partition.test": test, "train.participation": 0.4}
    simulation = simulate("fedavg", **BEFORE, **shared)
    metrics, data = simulation.folder.records()[-1]["metrics"], simulation.federation.data
    own, whole = [], []
    for upload in sent[-1]:
        client, tensors = upload.sealed.client, upload.tensors()
        assert client is not None
        whole.append(_correct(simulation, tensors, "server").double().mean())
        right, weights = (
            _correct(simulation, tensors, "test")[data.indices("test", client)].double(),
            data.weights("test", client),
        )
        own.append(right.mean() if weights is None else (right * weights).sum() / weights.sum())
    assert len(own) == 4
    assert metrics["global_accuracy_before_merge"] == pytest.approx(float(torch.stack(whole).mean()), abs=1e-9)
    assert metrics["accuracy_before_merge"] == pytest.approx(float(torch.stack(own).mean()), abs=1e-9)
    plain = simulate("fedavg", **shared)
    assert torch.equal(plain.state.row, simulation.state.row), "nothing else changes"
    rest = {name: value for name, value in metrics.items() if not name.endswith(("before_merge", "seconds"))}
    assert rest == {name: value for name, value in plain.folder.records()[-1]["metrics"].items() if name != "seconds"}


def test_the_mean_of_one_model_is_that_model(simulate: Simulate) -> None:
    simulation = simulate("fedavg", **BEFORE, **{"train.participation": 0.1})
    for record in simulation.folder.records()[1:]:
        assert record["metrics"]["global_accuracy_before_merge"] == record["metrics"]["global_accuracy"]


def test_a_layer_that_is_not_sent_is_the_servers(simulate: Simulate, sent: list[list[Upload]]) -> None:
    simulation = simulate("fedavg", **BEFORE, **{"wire.transforms": [{"name": "mask", "last": 1}], "train.participation": 0.1})
    (upload,) = sent[-1]
    assert "head.weight" not in upload.shapes
    state = simulation.federation.resident.space.unpack(simulation.state.row)
    right = _correct(simulation, {**state, **upload.tensors()}, "server")
    assert simulation.folder.records()[-1]["metrics"]["global_accuracy_before_merge"] == float(right.double().mean())


def test_clients_that_are_scored_on_validation_data_are_here_too(simulate: Simulate) -> None:
    options = {"eval.split": "validation", "data.validation_fraction": 0.2, "train.participation": 0.1}
    metrics = simulate("fedavg", **BEFORE, **options).folder.records()[-1]["metrics"]
    assert 0 <= metrics["accuracy_before_merge"] <= 1
    assert "global_accuracy_before_merge" not in metrics


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("fedrep", {}, "method fedrep leaves .* with the clients"),
        ("fedavg", {"objective.name": "simclr", "train.min_batch": 2}, "objective simclr learns without labels"),
        ("fedavg", {"wire.secure_aggregation": True, "train.min_uploads": 3}, "reads no single upload"),
    ],
)
def test_where_there_is_no_single_whole_model_it_is_refused(
    simulate: Simulate, method: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=f"eval.before_merge .*{why}"):
        simulate(method, play=False, **BEFORE, **options)
