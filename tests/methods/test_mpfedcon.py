"""MpFedcon: its equations, its identities with other methods, and its options."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.config import load_config
from fedpriv.data.partitions.partition import make_partition
from fedpriv.methods.mpfedcon import CENTERS, CLASSES, COUNTS, MASK, MpFedcon
from fedpriv.objectives.class_center import all_center_contrast, center_contrast
from fedpriv.server.merging import merge
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.checkpoints import Progress
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Payload, Sealed, seal
from fedpriv.wire.coding import Upload
from tests.conftest import simulated
from tests.deploy.apart import play_apart

Simulate = Callable[..., Simulation]
QUICK = {"method.head_epochs": 1, "train.rounds": 2, "model.projection": 16}


def scores(simulation: Simulation) -> list[dict[str, Any]]:
    skip = {"seconds", "bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down"}
    return [{k: v for k, v in r["metrics"].items() if k not in skip} for r in simulation.folder.records()]


def heads(simulation: Simulation) -> dict[int, dict[str, Tensor]]:
    private = simulation.federation.method.private_names
    return {c: {n: simulation.private(c)[n] for n in private} for c in range(simulation.config.data.clients)}


# 1. mu = 0 is FedRep, bit for bit; mu > 0 is not


@pytest.mark.parametrize("options", [{}, {"data.augment": "crop_flip"}, {"train.cache_features": False}])
def test_mu_zero_is_bitwise_fedrep(simulate: Simulate, options: dict[str, Any]) -> None:
    fedrep = simulate("fedrep", **QUICK, **options)
    mpfedcon = simulate("mpfedcon", **QUICK, **options, **{"method.mu": 0})
    assert torch.equal(mpfedcon.state.row, fedrep.state.row)
    assert scores(mpfedcon) == scores(fedrep)
    for mine, theirs in zip(heads(mpfedcon).values(), heads(fedrep).values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert mpfedcon.progress.total_bytes_up > fedrep.progress.total_bytes_up, "the centres are on the wire all the same"


def test_mu_positive_differs_once_there_are_centers(simulate: Simulate) -> None:
    assert not torch.equal(simulate("mpfedcon", **QUICK).state.row, simulate("fedrep", **QUICK).state.row)


# 2. frozen is frozen


def one_update(simulation: Simulation, watch: Callable[[str, ModelLocalUpdate], None]) -> ModelLocalUpdate:
    """The first client's local update of round 1, telling ``watch`` before and after each phase."""
    fed = simulation.federation
    client = 0
    private = fed.method.initial_private(client, fed.initial)
    download = fed.method.download(simulation.state, 1)
    received = seal(download).tensors() if download else {}
    fed.resident.space.pack({**private, **received}, fed.resident.row)
    update = ModelLocalUpdate(fed.resident, fed.data.train(client), fed.config, 1, client, received, private, True)
    train = update.train

    def spied(phase: Any, loss: Any, how: Any) -> None:
        watch("before", update)
        train(phase, loss, how)
        watch("after", update)

    update.train = spied  # type: ignore[method-assign]
    fed.method.local_update(update)
    return update


@pytest.mark.parametrize("method", ["mpfedcon", "fedrep"])
def test_each_phase_moves_its_part_alone_and_the_reference_never(simulate: Simulate, method: str) -> None:
    # Anchors for every class from the start, so that the contrastive term is on; weight decay and momentum would move
    # a part that is only "frozen" by its requires_grad.
    center = {"method.center_init": "random_unit"} if method == "mpfedcon" else {}
    simulation = simulate(method, play=False, **QUICK, **center, **{"train.weight_decay": 0.1, "train.momentum": 0.9})
    space = simulation.federation.resident.space
    rows: list[Tensor] = []
    references: list[Tensor] = []

    def watch(when: str, update: ModelLocalUpdate) -> None:
        rows.append(update.model.row.clone())
        if "reference" in update._teachers:
            references.append(update._teachers._frozen["reference"][0].clone())

    one_update(simulation, watch)
    start, after_head, _, after_encoder = rows
    for name in space.names:
        moved_in_head = not torch.equal(space.view(start, name), space.view(after_head, name))
        moved_in_encoder = not torch.equal(space.view(after_head, name), space.view(after_encoder, name))
        assert (moved_in_head, moved_in_encoder) == ((False, True) if space[name].role == "encoder" else (True, False)), name
    if method == "mpfedcon":
        assert len(references) == 4 and all(torch.equal(reference, start) for reference in references)


# 3. the loss


def test_contrast_equals_the_formula_and_ln2_if_equal() -> None:
    draw = torch.Generator().manual_seed(1)
    z, negative = torch.randn(2, 5, 8, generator=draw, dtype=torch.float64)
    centers = torch.randn(3, 8, generator=draw, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1, 0])
    loss = center_contrast(z, centers, labels, negative, tau=0.5)
    for j in range(5):
        up = math.exp(float(torch.cosine_similarity(z[j], centers[labels[j]], dim=0)) / 0.5)
        down = math.exp(float(torch.cosine_similarity(z[j], negative[j], dim=0)) / 0.5)
        assert float(loss[j]) == pytest.approx(-math.log(up / (up + down)), rel=1e-10)
    equal = center_contrast(z, centers, labels, centers[labels], tau=0.5)
    assert equal.tolist() == pytest.approx([math.log(2)] * 5)


def test_contrast_range_and_direction_of_its_gradient() -> None:
    axis = torch.eye(2, dtype=torch.float64)
    best = center_contrast(axis[:1], axis[:1], torch.tensor([0]), -axis[:1], tau=0.5)
    worst = center_contrast(-axis[:1], axis[:1], torch.tensor([0]), -axis[:1], tau=0.5)
    assert float(best) == pytest.approx(0.018, abs=5e-4) and float(worst) == pytest.approx(4.018, abs=5e-4)
    z = torch.tensor([[1.0, 1.0]], requires_grad=True)
    center_contrast(z, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([[0.0, 1.0]]), tau=0.5).sum().backward()
    assert z.grad is not None and z.grad[0, 0] < 0 < z.grad[0, 1], "a step against the gradient local updates z to its centre"


def test_contrast_gives_no_gradient_to_centers_or_negative() -> None:
    z, centers, negative = (torch.randn(4, 3, requires_grad=True) for _ in range(3))
    center_contrast(z, centers, torch.tensor([0, 1, 2, 3]), negative, 0.5).sum().backward()
    assert z.grad is not None and centers.grad is None and negative.grad is None


def test_contrast_without_negative() -> None:
    z, centers = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert float(center_contrast(z, centers, torch.tensor([0]), None, 0.5)) == pytest.approx(2.0)


def test_contrast_ignores_the_length_of_a_center() -> None:
    z, centers, negative = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)
    labels = torch.arange(4)
    torch.testing.assert_close(
        center_contrast(z, centers, labels, negative, 0.5), center_contrast(z, centers / 7, labels, negative, 0.5)
    )


def test_all_center_contrast_with_absent_centers() -> None:
    z = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    centers, negative = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    centers[2] = 0
    labels, valid = torch.tensor([0, 1, 2]), torch.tensor([True, True, False])
    loss = all_center_contrast(z, centers, labels, valid, negative, 0.5)
    e = lambda a, b: math.exp(float(torch.cosine_similarity(a.detach(), b, dim=0)) / 0.5)  # noqa: E731
    expected = -math.log(e(z[0], centers[0]) / (e(z[0], centers[0]) + e(z[0], centers[1]) + e(z[0], negative[0])))
    assert loss[0].item() == pytest.approx(expected)
    torch.where(valid[labels], loss, 0.0).sum().backward()
    assert z.grad is not None and bool(z.grad.isfinite().all()) and bool((z.grad[2] == 0).all())


def test_samples_of_a_class_without_center_count_in_the_mean(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", play=False, **QUICK, **{"method.mu": 3, "method.negative": "none"})
    method = simulation.federation.method
    from fedpriv.interfaces import Step
    from fedpriv.models.net import Outputs

    z = torch.randn(4, 16)
    outputs = Outputs(z, z, None, torch.zeros(4, 10))
    centers, mask = torch.randn(10, 16), torch.zeros(10, dtype=torch.bool)
    mask[0] = True
    step = Step(
        torch.tensor([0, 0, 1, 1]), outputs, {}, {CENTERS: centers, MASK: mask}, frozenset({"head"}), lambda name: outputs
    )
    contrast = center_contrast(z[:2], centers, torch.tensor([0, 0]), None, 0.5).sum() / 4
    assert float(method.local_loss(step)) == pytest.approx(math.log(10) + 3 * float(contrast), rel=1e-6)


# 4. what is on the wire


def recorded(simulation: Simulation) -> list[tuple[str, Sealed]]:
    seen: list[tuple[str, Sealed]] = []
    simulation.taps.append(lambda direction, sealed: seen.append((direction, sealed)))
    for _ in simulation.rounds():
        pass
    return seen


@pytest.mark.parametrize("weighting", ["plain", "counts"])
def test_uploads_are_the_encoder_and_centers_of_held_classes(simulate: Simulate, weighting: str) -> None:
    simulation = simulate("mpfedcon", play=False, **QUICK, **{"method.center_weighting": weighting})
    encoder = set(simulation.federation.resident.space.select(["encoder"]))
    seen = recorded(simulation)
    uploads = [sealed for direction, sealed in seen if direction == "up"]
    assert len(uploads) == 2 * 3
    for upload in uploads:
        assert upload.client is not None
        extra = {COUNTS} if weighting == "counts" else set()
        assert set(upload.schema) == encoder | {CENTERS, CLASSES} | extra
        labels = simulation.federation.data.train(upload.client).labels
        assert upload.tensors()[CLASSES].tolist() == sorted(set(labels.tolist()))
        assert upload.schema[CENTERS] == ("F32", (2, 16)), "two classes held, k numbers each"
        assert upload.num_examples == len(labels)
    for _, download in (entry for entry in seen if entry[0] == "down"):
        assert set(download.schema) == encoder | {CENTERS, MASK}
        assert download.schema[CENTERS] == ("F32", (10, 16)), "all classes to every client"


def test_round_zero_broadcasts_the_whole_model_to_every_client(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", play=False, **QUICK)
    broadcast = simulation.federation.method.broadcast(simulation.state)
    assert broadcast is not None and set(broadcast.tensors) == {*simulation.federation.resident.space.names, CENTERS, MASK}
    first = simulation.folder.records()[0]
    assert (
        first["round"] == 0
        and first["metrics"]["bytes_down"] == 10 * seal(broadcast).nbytes
        and first["metrics"]["bytes_up"] == 0
    )


HIDDEN = {"wire.transforms": [{"name": "mask", "names": ["statistic.*"]}]}


def test_without_centers_it_is_fedrep(simulate: Simulate) -> None:
    """Bit for bit, whatever mu is; and a user is told."""
    plain, other = (simulate("fedrep", **QUICK), simulate("mpfedcon", **QUICK, **HIDDEN))
    assert torch.equal(plain.state.row, other.state.row)
    for client in plain.progress.clients:
        kept, same = plain.private(client), other.private(client)
        assert kept.keys() == same.keys() and all(torch.equal(tensor, same[name]) for name, tensor in kept.items())
    (note,) = other.federation.prepared.notes
    assert note.startswith("method mpfedcon: no class centres are sent") and "trains as fedrep does" in note


@pytest.mark.slow
def test_a_deployment_is_told_that_it_is_fedrep(tmp_path: Path) -> None:
    warnings: list[str] = []
    folder = RunFolder.open(play_apart(tmp_path / "run", "mpfedcon", warnings, **HIDDEN, **{"train.rounds": 1}))
    assert [text for text in warnings if "trains as fedrep does" in text] == folder.facts["notes"] == folder.summary()["notes"]


@pytest.mark.parametrize(
    "options",
    [{}, {**HIDDEN, "method.center_init": "zeros"}, {**HIDDEN, "method.mu": 0}, {"wire.transforms": [{"name": "cast"}]}],
    ids=["centers sent", "fixed centers", "no term", "no mask"],
)
def test_nothing_is_said_of_centers_that_matter_or_should_not(simulate: Simulate, options: dict[str, Any]) -> None:
    assert not simulate("mpfedcon", play=False, **QUICK, **options).federation.prepared.notes


# 5. class centres


def upload_of(
    method: MpFedcon, server_row: Tensor, client: int, sent: dict[int, list[float]], counts: list[int] | None = None
) -> Upload:
    tensors = {
        **method.context.space.unpack(server_row, method.shared_names),
        CENTERS: torch.tensor(list(sent.values())).reshape(len(sent), -1),
        CLASSES: torch.tensor(list(sent), dtype=torch.int16),
    }
    if counts:
        tensors[COUNTS] = torch.tensor(counts, dtype=torch.int32)
    return Upload(seal(Payload(tensors, 1, client, num_examples=1)))


@pytest.fixture
def two_dim(simulate: Simulate) -> Callable[..., tuple[Simulation, MpFedcon]]:
    def make(**options: Any) -> tuple[Simulation, MpFedcon]:
        simulation = simulate("mpfedcon", play=False, **{"model.projection": 2}, **options)
        return simulation, simulation.federation.method  # type: ignore[return-value]

    return make


def test_centers_are_means_over_the_holders_of_a_class(two_dim: Callable[..., Any]) -> None:
    simulation, method = two_dim()
    server = simulation.state
    server = merge(
        method,
        server,
        [upload_of(method, server.row, 0, {1: [1.0, 3.0], 4: [2.0, 2.0]}), upload_of(method, server.row, 1, {1: [3.0, 5.0]})],
    )
    assert server.memory[MASK].nonzero().flatten().tolist() == [1, 4]
    assert server.memory[CENTERS][1].tolist() == [2.0, 4.0]
    assert server.memory[CENTERS][4].tolist() == [2.0, 2.0], "held by one client: that client's mean"
    later = merge(method, server, [upload_of(method, server.row, 2, {4: [8.0, 0.0]})])
    assert later.memory[CENTERS][1].tolist() == [2.0, 4.0], "no client holds it: it stays"
    assert later.memory[CENTERS][4].tolist() == [8.0, 0.0]
    assert later.memory[MASK].nonzero().flatten().tolist() == [1, 4]


def test_center_options(two_dim: Callable[..., Any]) -> None:
    sent = ({1: [1.0, 0.0]}, {1: [0.0, 4.0]})

    def aggregated(counts: tuple[int, int] | None = None, **options: Any) -> list[float]:
        simulation, method = two_dim(**options)
        held = [[n] for n in counts] if counts else [None, None]
        uploads = [upload_of(method, simulation.state.row, i, s, n) for i, (s, n) in enumerate(zip(sent, held, strict=True))]
        once = merge(method, simulation.state, uploads)
        return list(merge(method, once, [upload_of(method, once.row, 0, {1: [9.0, 9.0]}, [1] if counts else None)] if options.get("method.center_ema") else uploads).memory[CENTERS][1].tolist())  # fmt: skip  # noqa: E501

    assert aggregated() == [0.5, 2.0]
    assert aggregated(counts=(3, 1), **{"method.center_weighting": "counts"}) == [0.75, 1.0]
    assert aggregated(**{"method.center_normalize": True}) == [0.5, 0.5]
    assert aggregated(**{"method.center_ema": 0.5}) == [4.75, 5.5]


def test_center_is_the_clients_class_mean_in_evaluation_mode(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", play=False, **QUICK)
    update = one_update(simulation, lambda when, update: None)
    payload = simulation.federation.method.upload(update)  # type: ignore[arg-type]
    net = copy.deepcopy(update.model.net).eval()
    with torch.no_grad():
        z = net(update.inputs).projection
    for row, c in enumerate(payload.tensors[CLASSES].tolist()):  # type: ignore[union-attr]
        torch.testing.assert_close(payload.tensors[CENTERS][row], z[update.labels == c].mean(0), rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]


@pytest.mark.parametrize(("init", "valid", "norm"), [("mask", 0, 0.0), ("zeros", 10, 0.0), ("random_unit", 10, 1.0)])
def test_initial_centers(simulate: Simulate, init: str, valid: int, norm: float) -> None:
    for k in (4, 16):
        memory = simulate("mpfedcon", play=False, **{"method.center_init": init, "model.projection": k}).state.memory
        assert int(memory[MASK].sum()) == valid
        assert memory[CENTERS].shape == (10, k)
        assert memory[CENTERS].norm(dim=1).tolist() == pytest.approx([norm] * 10, abs=1e-5)


# 6. aggregation


def test_order_of_clients_and_equal_uploads(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", play=False, **QUICK)
    method, server = simulation.federation.method, simulation.state
    same = [Upload(seal(Payload(method.context.space.unpack(server.row, method.shared_names) | {CENTERS: torch.empty(0, 16), CLASSES: torch.empty(0, dtype=torch.int16)}, 1, i, num_examples=n))) for i, n in enumerate((1, 5, 3))]  # fmt: skip  # noqa: E501
    torch.testing.assert_close(merge(method, server, same).row, server.row)
    a = merge(method, server, same).row
    b = merge(method, server, same[::-1]).row
    torch.testing.assert_close(a, b)


# 7. heads never leave their clients


def test_training_one_client_leaves_every_other_clients_state(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", play=False, **{**QUICK, "train.rounds": 3})
    simulation.run_round()
    simulation.run_round()
    before = {c: {n: t.clone() for n, t in state.items()} for c, state in heads(simulation).items()}
    trained_before = dict(simulation.progress.clients)
    simulation.run_round()
    after = heads(simulation)
    took_part = {c for c, r in simulation.progress.clients.items() if r == 3}
    assert took_part and len(took_part) < 10
    for client in range(10):
        equal = all(torch.equal(after[client][n], before[client][n]) for n in before[client])
        assert equal == (client not in took_part), client
    never = set(range(10)) - set(simulation.progress.clients)
    initial = simulation.federation.initial
    space = simulation.federation.resident.space
    assert all(torch.equal(after[c][n], space.view(initial, n)) for c in never for n in after[c]), (
        "the initial head, not the server's"
    )
    assert trained_before.keys() <= simulation.progress.clients.keys()


# 8. the partition


def test_partition_of_the_main_experiment() -> None:
    labels, test_labels = np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000)
    config = load_config(None, {"data.clients": 100, "data.partition.classes_per_client": 2})
    partition = make_partition(labels, test_labels, 10, config.data, 0)
    assert all(len(held) == 500 and len(set(labels[held])) == 2 for held in partition.train)
    assert len(np.unique(np.concatenate(partition.train))) == 50_000
    assert all(set(test_labels[t]) == set(labels[h]) for t, h in zip(partition.test, partition.train, strict=True))


# 9. resume


def test_the_next_round_is_the_same_after_a_restore(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", play=False, **{**QUICK, "train.rounds": 3})
    simulation.run_round()
    simulation.run_round()
    again = Simulation(simulation.federation, simulation.folder, lambda text: None)
    again.restore()
    assert isinstance(again.progress, Progress) and again.progress.round == 2
    for run in (simulation, again):
        run.run_round()
    assert torch.equal(simulation.state.row, again.state.row)
    assert all(torch.equal(simulation.state.memory[n], again.state.memory[n]) for n in simulation.state.memory)


# the options of section 5 do what they say


THREE_ROUNDS = {"train.rounds": 3, "train.participation": 0.6, "model.name": "mlp_lineage", "train.batch_size": 50}


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    return simulated(tmp_path_factory.mktemp("default"), "mpfedcon", **{**QUICK, **THREE_ROUNDS})


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"method.negative": "R2"}, {"method.negative": "R3"}, {"method.negative": "none"}, {"method.denominator": "all_centers"},
        {"method.con_phase": "encoder"}, {"method.con_phase": "head"}, {"method.center_init": "zeros"},
        {"method.center_init": "random_unit"}, {"method.center_ema": 0.5}, {"method.projector_init": "per_client"},
        {"method.tau": 0.1}, {"method.mu": 0.5}, {"method.head_epochs": 2}, {"eval.state": "local_encoder"},
    ],
)  # fmt: skip
def test_every_option_changes_something_and_stays_finite(simulate: Simulate, default: Simulation, option: dict[str, Any]) -> None:
    changed = simulate("mpfedcon", **{**QUICK, **THREE_ROUNDS, **option})
    assert bool(changed.state.row.isfinite().all())
    if "eval.state" in option:
        assert torch.equal(default.state.row, changed.state.row) and scores(default) != scores(changed)
    else:
        assert not torch.equal(default.state.row, changed.state.row)


def test_negative_r2_keeps_the_clients_own_last_model(simulate: Simulate) -> None:
    simulation = simulate("mpfedcon", **QUICK, **{"method.negative": "R2"})
    client = next(iter(simulation.progress.clients))
    assert set(simulation.private(client)) == set(simulation.federation.resident.space.names)


def test_negative_r2_is_tested_with_the_new_global_encoder(simulate: Simulate) -> None:
    """The client's last model is its teacher, not what it is tested with."""
    simulation = simulate("mpfedcon", **{**QUICK, "train.rounds": 3}, **{"method.negative": "R2"})
    method, space = simulation.federation.method, simulation.federation.resident.space
    for client in range(10):
        own = simulation.private(client)
        state = method.client_state(simulation.state.row, own)
        for name in space.names:
            source = space.view(simulation.state.row, name) if space[name].role == "encoder" else own[name]
            assert torch.equal(state[name], source)


@pytest.mark.parametrize("names", [["statistic.*"], ["statistic.centers"], ["statistic.classes"]])
def test_centres_that_are_masked_leave_the_memory_as_it_was(simulate: Simulate, names: list[str]) -> None:
    simulation = simulate("mpfedcon", **QUICK, **{"wire.transforms": [{"name": "mask", "names": names}]})
    assert not simulation.state.memory[MASK].any()
    assert not torch.equal(simulation.state.row, simulation.federation.initial)
