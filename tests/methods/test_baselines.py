"""local, fedavg, fedavg-ft, fedper: identities and what each shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.aggregation.mean import normalised, weighted_mean
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.errors import UsageError
from fedpriv.methods import methods
from fedpriv.seeding import generator
from fedpriv.server.merging import merge
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed
from fedpriv.wire.coding import Upload
from tests.marks import FEW, federated, slow_but

Simulate = Callable[..., Simulation]


def central_sgd(simulation: Simulation, client: int, updates: list[tuple[int, int]]) -> torch.Tensor:
    """Plain torch: one net, torch's SGD per ``(round, epochs)`` turn on one client's data. -> the row."""
    fed, train = simulation.federation, simulation.config.train
    resident = fed.resident.frozen
    resident.row.copy_(fed.initial)
    resident.set_trained(frozenset({"encoder", "projector", "head"}))
    x, y = fed.data.train(client)
    weights = [p for p in resident.net.parameters() if p.ndim > 1]
    biases = [p for p in resident.net.parameters() if p.ndim == 1]
    for round, epochs in updates:
        groups = [{"params": weights, "weight_decay": train.weight_decay}, {"params": biases}]
        optimiser = torch.optim.SGD(groups, lr=train.lr, momentum=train.momentum)
        draw = generator(simulation.config.seed, round, client, "train", 1, "shuffle")
        for _ in range(epochs):
            for index in torch.randperm(len(y), generator=draw).split(train.batch_size):
                optimiser.zero_grad(set_to_none=False)
                nn.functional.cross_entropy(resident.net(x[index]).logits, y[index]).backward()
                optimiser.step()
    return resident.row


def test_fedavg_with_one_client_is_central_sgd(simulate: Simulate) -> None:
    single_client = {"data.clients": 1, "train.participation": 1.0, "data.partition.name": "iid"}
    simulation = simulate("fedavg", **single_client)
    assert torch.equal(simulation.state.row, central_sgd(simulation, 0, [(1, 1), (2, 1), (3, 1)]))


def test_fedavg_is_the_mean_of_central_sgds_weighted_by_samples(simulate: Simulate) -> None:
    simulation = simulate("fedavg", **{"data.partition.name": "lognormal", "data.partition.size_offset": 5, "train.rounds": 1})
    clients = sorted(simulation.participants(1))
    sizes = [simulation.federation.data.size(c) for c in clients]
    assert len(set(sizes)) > 1
    expected = sum(n / sum(sizes) * central_sgd(simulation, c, [(1, 1)]).double() for c, n in zip(clients, sizes, strict=True))
    torch.testing.assert_close(simulation.state.row.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_local_trains_clients_in_rotation_and_sends_nothing(simulate: Simulate) -> None:
    simulation = simulate("local", **{"train.rounds": 4, "train.participation": 0.5, "method.epochs": 2})
    assert simulation.progress.total_bytes_down == 0
    updates: dict[int, list[tuple[int, int]]] = {}
    for round in range(1, 5):
        for client in simulation.participants(round):
            updates.setdefault(client, []).append((round, 2))
    assert {len(t) for t in updates.values()} == {2} and len(updates) == 10, "every client has T r local updates"
    client = simulation.participants(4)[0]
    row = central_sgd(simulation, client, updates[client])
    kept = simulation.private(client)
    assert all(torch.equal(kept[name], simulation.federation.resident.space.view(row, name)) for name in kept)


def test_local_has_the_budget_of_fedrep_by_default(simulate: Simulate) -> None:
    method = simulate("local", play=False, **{"train.local_epochs": 3}).federation.method
    assert [p.epochs for p in method.phases(1)] == [13]
    own = simulate("local", play=False, **{"method.epochs": 2, "train.local_steps": 3}).federation.method.phases(1)
    assert [(p.epochs, p.steps) for p in own] == [(2, None)]


@pytest.mark.slow
def test_fine_tuning_changes_the_last_score_and_no_state(simulate: Simulate) -> None:
    plain, tuned = simulate("fedavg", **{"eval.fresh_head": 10}), simulate("fedavg-ft")
    assert torch.equal(plain.state.row, tuned.state.row)
    assert tuned.progress.clients == {}
    accuracy = [[r["metrics"].get("accuracy") for r in s.folder.records()] for s in (plain, tuned)]
    assert accuracy[0][:-1] == accuracy[1][:-1]
    assert accuracy[1][-1] > accuracy[0][-1], "a head tuned to two classes does better on them"
    final = [s.folder.records()[-1]["metrics"]["global_accuracy"] for s in (plain, tuned)]
    assert final[0] == final[1], "the global model itself is untouched"
    fresh = [record["metrics"].get("accuracy_fresh_head") for record in plain.folder.records()]
    assert fresh == [None] * (len(fresh) - 1) + [accuracy[1][-1]], "fresh heads of FedAvg are its fine-tuning"


@pytest.mark.slow
def test_fresh_heads_are_trained_on_copies(simulate: Simulate) -> None:
    plain, tested = simulate("fedrep"), simulate("fedrep", **{"eval.fresh_head": 5})
    metrics = [simulation.folder.records()[-1]["metrics"] for simulation in (plain, tested)]
    assert metrics[1].pop("accuracy_fresh_head") > metrics[0]["accuracy"], "heads of the present encoder do better"
    assert metrics[0]["accuracy"] == metrics[1]["accuracy"] and torch.equal(plain.state.row, tested.state.row)
    for client in plain.progress.clients:
        kept = tested.private(client)
        assert all(torch.equal(tensor, kept[name]) for name, tensor in plain.private(client).items())


@pytest.mark.parametrize("method", slow_but(["mpfedcon"], federated()))
def test_the_clients_of_any_method_have_fresh_heads(simulate: Simulate, method: str) -> None:
    config = {"train.rounds": 1, "data.clients": 4, "train.min_batch": 2, "eval.fresh_head": 1}
    if method == "l-dawa":
        with pytest.raises(UsageError, match="learns without labels"):
            simulate(method, play=False, **config)
        return
    simulation = simulate(method, **config)
    assert 0 <= simulation.folder.records()[-1]["metrics"]["accuracy_fresh_head"] <= 1


def test_fine_tuning_the_head_leaves_the_encoder(simulate: Simulate) -> None:
    simulation = simulate("fedavg-ft", **{"method.ft_scope": "head"})
    resident, space = simulation.federation.resident, simulation.federation.resident.space
    simulation.scorer.score(
        simulation.state, simulation.progress.clients, 3
    )  # leaves the last client's tuned model in the resident net
    for name in space.names:
        same = torch.equal(space.view(resident.row, name), space.view(simulation.state.row, name))
        assert same == (space[name].role == "encoder"), name


def test_fine_tuning_for_some_steps(simulate: Simulate) -> None:
    simulation = simulate("fedavg-ft", play=False, **{"method.ft_steps": 7})
    updates: list[int] = []

    def trained(update: ModelLocalUpdate, *given: Any) -> None:
        real(update, *given)
        updates.append(update.steps)

    real, last = ModelLocalUpdate.train, simulation.federation.config.train.rounds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelLocalUpdate, "train", trained)
        simulation.scorer.score(simulation.state, simulation.progress.clients, last)
    assert updates == [7] * 10


def test_fine_tuning_every_last_round(simulate: Simulate) -> None:
    options = {"method.ft_when": "last", "eval.last": 2}
    plain, tuned = (
        simulate(m, **(options if m == "fedavg-ft" else {"eval.last": 2})).folder.records() for m in ("fedavg", "fedavg-ft")
    )
    changed = [a["metrics"].get("accuracy") != b["metrics"].get("accuracy") for a, b in zip(plain, tuned, strict=True)]
    assert changed == [False, False, True, True]


def test_fedper_shares_the_encoder_and_keeps_the_rest(simulate: Simulate) -> None:
    simulation = simulate("fedper", **{"train.rounds": 1})
    space = simulation.federation.resident.space
    for name in space.names:
        same_as_initial = torch.equal(space.view(simulation.state.row, name), space.view(simulation.federation.initial, name))
        assert same_as_initial == (space[name].role != "encoder"), "the server averages the encoder and never gets a head"
    client = simulation.participants(1)[0]
    assert all(not torch.equal(t, space.view(simulation.federation.initial, n)) for n, t in simulation.private(client).items())


def test_personal_layers_of_fedper_stay_with_the_client(simulate: Simulate) -> None:
    simulation = simulate("fedper", **{"train.rounds": 1, "model.name": "mlp2", "method.personal": ["encoder.fc2.*"]})
    fed, client = simulation.federation, simulation.participants(1)[0]
    deep = {"encoder.fc2.weight", "encoder.fc2.bias"}
    assert deep < set(fed.method.private_names) and not deep & set(fed.method.shared_names)
    for name in deep:
        untouched = fed.resident.space.view(fed.initial, name)
        assert torch.equal(fed.resident.space.view(simulation.state.row, name), untouched)
        kept = simulation.private(client)[name]
        assert not torch.equal(kept, untouched)
        assert torch.equal(fed.method.client_state(simulation.state.row, simulation.private(client))[name], kept)


@pytest.mark.parametrize(
    ("patterns", "error"), [(["encoder.fc9.*"], "'encoder.fc9.*' matches no tensor"), (["encoder.*"], "leaves nothing to share")]
)
def test_personal_layers_that_cannot_be(simulate: Simulate, patterns: list[str], error: str) -> None:
    with pytest.raises(UsageError, match=error.replace("*", r"\*").replace(".", r"\.")):
        simulate("fedper", play=False, **{"method.personal": patterns})


def test_fedrep_without_head_epochs_is_not_fedper(simulate: Simulate) -> None:
    fedrep = simulate("fedrep", **{"method.head_epochs": 0, "train.rounds": 1})
    client = fedrep.participants(1)[0]
    assert all(
        torch.equal(t, fedrep.federation.resident.space.view(fedrep.federation.initial, n))
        for n, t in fedrep.private(client).items()
    )


@pytest.mark.parametrize("name", slow_but(FEW, sorted(methods())))
def test_permuting_the_uploads_changes_nothing(simulate: Simulate, name: str) -> None:
    simulation, uploads = simulate(name, play=False), list[Sealed]()
    simulation.taps.append(lambda way, sealed: uploads.append(sealed) if way == "up" else None)
    before = simulation.state
    simulation.run_round()
    if not simulation.federation.method.shared:
        assert not uploads
        return
    assert len(uploads) == 3
    sent = [Upload(upload) for upload in uploads]
    first, other = (merge(simulation.federation.method, before, order) for order in (sent, sent[::-1]))
    torch.testing.assert_close(first.row, other.row, rtol=1e-6, atol=1e-7)
    for key in first.memory:
        torch.testing.assert_close(first.memory[key], other.memory[key], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(methods()))
def test_methods_describe_themselves(name: str) -> None:
    method = methods()[name]
    assert method.title and method.paper and method.name == name


def test_mean_weights_sum_to_one_and_refuse_nonsense() -> None:
    assert float(normalised([3, 1, 4]).sum()) == 1.0
    rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert weighted_mean(rows, [1, 3]).tolist() == [2.5, 5.0]
    bad: Any
    for bad in ([], [0, 0], [1, -1]):
        with pytest.raises(ValueError, match="weights"):
            normalised(bad)


def test_buffers_are_averaged_and_counters_are_not_sent(simulate: Simulate) -> None:
    options = {
        "model.name": "resnet9_narrow",
        "data.clients": 5,
        "data.partition.name": "lognormal",
        "data.partition.size_offset": 9,
    }
    simulation, uploads = (
        simulate("fedavg", play=False, **options, **{"train.participation": 0.4, "train.batch_size": 999}),
        list[Sealed](),
    )
    simulation.taps.append(lambda way, sealed: uploads.append(sealed) if way == "up" else None)
    simulation.run_round()
    space = simulation.federation.resident.space
    name = next(e.name for e in space.entries if e.kind == "buffer" and e.name.endswith("running_mean"))
    sizes = torch.tensor([float(upload.num_examples or 0) for upload in uploads])
    assert sizes[0] != sizes[1]
    sent = torch.stack([upload.tensors()[name] for upload in uploads])
    torch.testing.assert_close(space.view(simulation.state.row, name), (sizes / sizes.sum()) @ sent, rtol=1e-5, atol=1e-6)
    download = simulation.federation.method.download(simulation.state, 2)
    assert download is not None and name in download.tensors and not any("num_batches" in n for n in download.tensors)
